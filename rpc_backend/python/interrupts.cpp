// Ctrl-C for waits in C++: runs the signals' Python handlers, keeps what they raise, and throws it
// where the wait's caller is Python's (transport/base/interruption.h).
#include <pybind11/pybind11.h>

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

void throwRaised() {
  const std::unique_ptr<py::error_already_set> raised(std::exchange(g_raised, nullptr));
  if (raised != nullptr) throw py::error_already_set(*raised);
}

}  // namespace

void hookInterrupts() { transport::setInterruptHook({&checkSignals, &throwRaised}); }

}  // namespace weft::rpc
