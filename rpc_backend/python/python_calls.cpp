// rpc_sync of a Python function, and waits for torch's futures (weft/_torch/patches/calls.py,
// futures.py), both so that Ctrl-C ends them with what its handler raised.
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/distributed/rpc/python_call.h>
#include <torch/csrc/distributed/rpc/python_resp.h>
#include <torch/csrc/distributed/rpc/python_rpc_handler.h>
#include <torch/csrc/distributed/rpc/rref_impl.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "rpc_backend/call/inline_waiter.h"
#include "rpc_backend/core/future_wait.h"
#include "rpc_backend/python/bindings.h"

namespace py = pybind11;

namespace weft::rpc {

namespace {

using torch::distributed::rpc::PyRRef;
using torch::distributed::rpc::PythonCall;
using torch::distributed::rpc::PythonResp;
using torch::distributed::rpc::PythonRpcHandler;
using torch::distributed::rpc::SerializedPyObj;
using torch::jit::PythonFutureWrapper;

// The answer's object. An unpickler that fails, and an exception of the function's, give the errors
// of torch's futures (toPyJitFuture in torch's python_functions.cpp); what is no Exception, such as
// KeyboardInterrupt, goes on as it is: torch makes a RuntimeError of it. Without the GIL.
py::object unpickled(const SerializedPyObj& answer) {
  auto& handler = PythonRpcHandler::getInstance();
  const py::gil_scoped_acquire gil;
  try {
    py::object value = handler.deserialize(answer);
    handler.handleExceptionGILHeld(value);
    return value;
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    if (error.matches(PyExc_ValueError)) throw py::value_error(error.what());
    if (error.matches(PyExc_TypeError)) throw py::type_error(error.what());
    throw std::runtime_error(error.what());
  }
}

// As pyRpcPythonUdf and a wait for its future. With a future in between, the unpickler runs inside
// of that future's callback, and so do the handlers of signals: what they raise became its text.
py::object callPython(const WorkerInfo& to, std::string pickled, std::vector<at::Tensor> tensors,
                      float timeout, bool async_execution) {
  const py::gil_scoped_release no_gil;
  auto message =
      PythonCall(SerializedPyObj(std::move(pickled), std::move(tensors)), async_execution)
          .toMessage();
  const ScopedInlineWaiter waiter;
  const auto future = torch::distributed::autograd::sendMessageWithAutograd(
      *RpcAgent::getCurrentRpcAgent(), to, std::move(message), /*forceGradRecording=*/true,
      timeout);
  awaitAnswer(*future);
  const auto answer = future->constValue().toCustomClass<Message>();
  MessageType type = answer->type();
  const auto response = torch::distributed::rpc::deserializeResponse(*answer, type);
  TORCH_CHECK(type == MessageType::PYTHON_RET, "Unrecognized response message type ", type);
  return unpickled(static_cast<PythonResp&>(*response).serializedPyObj());
}

// The value that another thread makes of a `remote` to this worker itself.
void awaitOwnValue(const PyRRef& rref) {
  if (!rref.isOwner()) return;
  const auto owned = c10::dynamic_intrusive_pointer_cast<torch::distributed::rpc::OwnerRRef>(
      rref.toIValue().toRRef());
  // That one never comes: to_here() raises.
  if (!owned || owned->getTimedOut()) return;
  const py::gil_scoped_release no_gil;
  awaitInterruptibly(*owned->getFuture());
}

}  // namespace

void bindPythonCalls(py::module_& module) {
  module.def("_call_python", &callPython, py::arg("to"), py::arg("pickled"), py::arg("tensors"),
             py::arg("timeout"), py::arg("async_execution"),
             "rpc_sync of a pickled call: what it returned.");
  module.def(
      "_await", [](const PythonFutureWrapper& future) { awaitInterruptibly(*future.fut); },
      py::arg("future"), py::call_guard<py::gil_scoped_release>(),
      "Waits until the future is complete, or until Ctrl-C.");
  module.def("_await_own_value", &awaitOwnValue, py::arg("rref"),
             "Waits until the RRef has its value if this worker owns it, or until Ctrl-C.");
}

}  // namespace weft::rpc
