// rpc_sync and rpc_async of a Python function, and waits for torch's futures
// (weft/_torch/patches/calls.py, futures.py): a call raises what its function raised, and Ctrl-C
// ends a wait with what its handler raised.
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
#include <tuple>
#include <vector>

#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/core/future_wait.h"
#include "rpc_backend/python/answer_value.h"
#include "rpc_backend/python/bindings.h"
#include "rpc_backend/python/held_exception.h"
#include "rpc_backend/serve/callback/sender_scope.h"
#include "rpc_backend/trace/call_recorder.h"

namespace py = pybind11;

namespace weft::rpc {

namespace {

using torch::distributed::rpc::PyRRef;
using torch::distributed::rpc::PythonCall;
using torch::distributed::rpc::PythonResp;
using torch::distributed::rpc::PythonRpcHandler;
using torch::distributed::rpc::SerializedPyObj;
using torch::jit::PythonFutureWrapper;

// The object of an answer. If the unpickler raises an Exception, throws the error that torch's
// futures have (toPyJitFuture in torch's python_functions.cpp). Others, such as KeyboardInterrupt,
// are passed on. With the GIL.
py::object unpickled(PythonRpcHandler& handler, const SerializedPyObj& answer) {
  try {
    return handler.deserialize(answer);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    if (error.matches(PyExc_ValueError)) throw py::value_error(error.what());
    if (error.matches(PyExc_TypeError)) throw py::type_error(error.what());
    throw std::runtime_error(error.what());
  }
}

// Gives `take` what the function returned at worker `from`; throws error_already_set with what it
// raised. Without the GIL, which `take` has.
template <typename Take>
auto withValue(const Message& answer, worker_id_t from, Take&& take) {
  MessageType type = answer.type();
  const auto response = torch::distributed::rpc::deserializeResponse(answer, type);
  TORCH_CHECK(type == MessageType::PYTHON_RET, "Unrecognized response message type ", type);
  const SerializedPyObj& pickled = static_cast<PythonResp&>(*response).serializedPyObj();
  auto& handler = PythonRpcHandler::getInstance();
  const py::gil_scoped_acquire gil;
  py::object value = [&] {
    const SenderScope scope(from);
    return unpickled(handler, pickled);
  }();
  handler.handleExceptionGILHeld(value);
  return take(std::move(value));
}

FuturePtr send(const WorkerInfo& to, std::string pickled, std::vector<at::Tensor> tensors,
               float timeout, bool async_execution) {
  auto message =
      PythonCall(SerializedPyObj(std::move(pickled), std::move(tensors)), async_execution)
          .toMessage();
  return torch::distributed::autograd::sendMessageWithAutograd(
      *RpcAgent::getCurrentRpcAgent(), to, std::move(message), /*forceGradRecording=*/true,
      timeout);
}

// As torch's pyRpcPythonUdf and a wait for its future. Without that future: the unpickler, and the
// handlers of signals, would run inside its callback, and it would keep only the text of what they
// raise.
py::object callPython(const WorkerInfo& to, std::string pickled, std::vector<at::Tensor> tensors,
                      float timeout, bool async_execution) {
  const CallSite site;
  const py::gil_scoped_release no_gil;
  const auto answer = answerTo(
      [&] { return send(to, std::move(pickled), std::move(tensors), timeout, async_execution); });
  return withValue(*answer->constValue().toCustomClass<Message>(), to.id_,
                   [](py::object value) { return value; });
}

// The answer's value. What the function raised comes in a form that may be thrown several times;
// Python's own may be thrown only once. Without the GIL.
at::IValue read(const JitFuture& answer, worker_id_t from) {
  try {
    return withValue(
        *answer.constValue().toCustomClass<Message>(), from,
        [](const py::object& made) { return torch::jit::toIValue(made, at::PyObjectType::get()); });
  } catch (const py::error_already_set& raised) {
    const py::gil_scoped_acquire gil;
    throw HeldException(raised);
  }
}

// As torch's pyRpcPythonUdf, whose future keeps only the text of an exception.
std::shared_ptr<PythonFutureWrapper> startPython(const WorkerInfo& to, std::string pickled,
                                                 std::vector<at::Tensor> tensors, float timeout,
                                                 bool async_execution) {
  const CallSite site;
  const py::gil_scoped_release no_gil;
  const auto answer = send(to, std::move(pickled), std::move(tensors), timeout, async_execution);
  return std::make_shared<PythonFutureWrapper>(
      futureValue(answer, at::PyObjectType::get(),
                  [from = to.id_](const JitFuture& answered) { return read(answered, from); }));
}

// Waits for a value of this worker's own, which another thread makes.
void awaitOwnValue(const PyRRef& rref) {
  if (!rref.isOwner()) return;
  const auto owned = c10::dynamic_intrusive_pointer_cast<torch::distributed::rpc::OwnerRRef>(
      rref.toIValue().toRRef());
  // Where it has failed the value will never come, and torch raises.
  if (!owned || owned->hasValue() || owned->getTimedOut()) return;
  const py::gil_scoped_release no_gil;
  if (const auto agent = WeftAgent::current()) agent->rrefs().onOwnWait(owned->rrefId());
  awaitInterruptibly(*owned->getFuture());
}

// As PyRRef::pickle() makes them: owner, the value's id, the fork's id, parent, type.
using ForkData = std::tuple<worker_id_t, worker_id_t, std::int64_t, worker_id_t, std::int64_t,
                            worker_id_t, std::string>;

void forgetForks(const std::vector<ForkData>& forks) {
  const auto agent = WeftAgent::current();
  if (!agent) return;
  for (const auto& [owner, made_on, value, forked_on, fork, parent, type] : forks)
    agent->rrefs().undoFork({owner, {{made_on, value}, {forked_on, fork}}, parent});
}

}  // namespace

void bindPythonCalls(py::module_& module) {
  translateHeldExceptions();
  module.def("_call_python", &callPython, py::arg("to"), py::arg("pickled"), py::arg("tensors"),
             py::arg("timeout"), py::arg("async_execution"),
             "rpc_sync of a pickled call: what it returned.");
  module.def("_start_python", &startPython, py::arg("to"), py::arg("pickled"), py::arg("tensors"),
             py::arg("timeout"), py::arg("async_execution"),
             "rpc_async of a pickled call: a future, which raises what the function raised.");
  module.def("_sender_of_message", &SenderScope::sender,
             "The worker whose message this thread unpickles; None where that is not known.");
  module.def(
      "_await", [](const PythonFutureWrapper& future) { awaitInterruptibly(*future.fut); },
      py::arg("future"), py::call_guard<py::gil_scoped_release>(),
      "Waits until the future is complete, or until Ctrl-C.");
  module.def("_await_own_value", &awaitOwnValue, py::arg("rref"),
             "Waits until the RRef has its value if this worker owns it, or until Ctrl-C.");
  module.def("_forget_forks", &forgetForks, py::arg("forks"),
             py::call_guard<py::gil_scoped_release>(),
             "Drops forks, each as PyRRef._serialize() returned it, that nobody will get.");
}

}  // namespace weft::rpc
