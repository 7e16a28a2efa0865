// Ctrl-C for waits in C++: runs the signals' Python handlers, keeps what they raise, and throws it
// where the wait's caller is Python's (transport/base/interruption.h).
#include <pybind11/pybind11.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <memory>
#include <utility>

#include "rpc_backend/python/bindings.h"
#include "third_party/torch/interpreter.h"
#include "transport/base/interruption.h"

namespace py = pybind11;

namespace weft::rpc {

namespace {

// The main thread's. Never freed: the interpreter may have ended before.
py::error_already_set* g_raised = nullptr;

bool checkSignals() {
  if (g_raised != nullptr) return true;
  if (interpreterEnds()) return false;
  const py::gil_scoped_acquire gil;
  // A destructor that waits may run while another error is on its way.
  const py::error_scope others;
  if (PyErr_CheckSignals() == 0) return false;
  g_raised = new py::error_already_set();
  return true;
}

// For Py_AddPendingCall(): what it raises reaches the program wherever its main thread is.
int raiseAgain(void* raised) {
  std::unique_ptr<py::error_already_set>(static_cast<py::error_already_set*>(raised))->restore();
  return -1;
}

// TorchScript's interpreter makes a RuntimeError of every exception that goes through it. So there
// the exception is raised once more when Python runs again.
void throwRaised() {
  std::unique_ptr<py::error_already_set> raised(std::exchange(g_raised, nullptr));
  if (raised == nullptr) return;
  const py::error_already_set thrown(*raised);
  if (!torch::jit::currentCallstack().empty() && Py_AddPendingCall(&raiseAgain, raised.get()) == 0)
    static_cast<void>(raised.release());
  throw py::error_already_set(thrown);
}

}  // namespace

void hookInterrupts() { transport::setInterruptHook({&checkSignals, &throwRaised}); }

}  // namespace weft::rpc
