// What rpc_sync, rpc_async and remote run in C++ (weft/_torch_patches.py): calls that are waited
// for at once, and built-in operators.
#include <ATen/ThreadLocalState.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/script_resp.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "rpc_backend/builtin_call.h"
#include "rpc_backend/python.h"
#include "rpc_backend/seated.h"
#include "rpc_backend/weft_agent.h"

namespace py = pybind11;

namespace {

using torch::distributed::rpc::JitFuture;
using torch::distributed::rpc::Message;
using torch::distributed::rpc::MessageType;
using torch::distributed::rpc::PyRRef;
using torch::distributed::rpc::RpcAgent;
using torch::distributed::rpc::RRefContext;
using torch::distributed::rpc::WorkerInfo;
using torch::jit::Operator;
using torch::jit::PythonFutureWrapper;
using torch::jit::Stack;
using weft::rpc::AnswerSeat;
using weft::rpc::Seated;
using weft::rpc::WeftAgent;

// Arguments with which torch's choice among an operator's overloads depends on nothing but what is
// written here. False: it may depend on more.
bool describe(PyObject* value, std::string& out) {
  if (value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) ||
      PyFloat_CheckExact(value)) {
    out += Py_TYPE(value)->tp_name;
    out += ',';
    return true;
  }
  if (!THPVariable_CheckExact(value)) return false;
  // One without dimensions may stand for a number.
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (!tensor.defined() || tensor.dim() == 0) return false;
  out += tensor.requires_grad() ? "T'," : "T,";
  return true;
}

std::optional<std::string> describe(const std::string& name, const py::tuple& args,
                                    const py::kwargs& kwargs) {
  std::string key = name + '(';
  for (const py::handle value : args) {
    if (!describe(value.ptr(), key)) return std::nullopt;
  }
  for (const auto& [keyword, value] : kwargs) {
    key += keyword.cast<std::string>() + '=';
    if (!describe(value.ptr(), key)) return std::nullopt;
  }
  return key;
}

bool fits(const Operator& op, const py::tuple& args, const py::kwargs& kwargs, Stack& stack) {
  try {
    stack = torch::jit::createStackForSchema(op.schema(), args, kwargs, std::nullopt);
    return true;
  } catch (const std::runtime_error&) {
    return false;  // not for these arguments
  }
}

// torch's choice: the first overload that takes the arguments. torch tries them one by one, and
// each that does not fit throws an error with its schema in words, 10 us of a call; so the choice
// is kept. Null: torch should look.
std::shared_ptr<Operator> choose(const std::string& name, const py::tuple& args,
                                 const py::kwargs& kwargs, Stack& stack) {
  constexpr std::size_t kMostKept = 1024;
  static auto& kept = *new std::unordered_map<std::string, std::shared_ptr<Operator>>;  // the GIL
  const auto key = describe(name, args, kwargs);
  if (!key) return nullptr;
  if (const auto found = kept.find(*key); found != kept.end() &&
                                          weft::rpc::stillRegistered(found->second) &&
                                          fits(*found->second, args, kwargs, stack)) {
    return found->second;
  }
  const auto symbol = at::Symbol::fromQualString(name);
  if (!symbol.is_aten()) return nullptr;
  for (const auto& op : torch::jit::getAllOperatorsFor(symbol)) {
    if (!fits(*op, args, kwargs, stack)) continue;
    if (kept.size() >= kMostKept) kept.clear();
    kept[*key] = op;
    return op;
  }
  return nullptr;
}

bool returnsTensor(const Operator& op) {
  const auto& returns = op.schema().returns();
  return returns.size() == 1 && *returns.front().type() == *at::TensorType::get();
}

// The value of an answer; autograd's part of it is attached on the way.
at::IValue valueOf(const Message& message) {
  MessageType type = message.type();
  const auto response = torch::distributed::rpc::deserializeResponse(message, type);
  TORCH_CHECK(type == MessageType::SCRIPT_RET, "Unrecognized response message type ", type);
  return static_cast<torch::distributed::rpc::ScriptResp&>(*response).value();
}

bool weftIsCurrent() {
  return RpcAgent::isCurrentRpcAgentSet() &&
         dynamic_cast<WeftAgent*>(RpcAgent::getCurrentRpcAgent().get()) != nullptr;
}

// (True, result), or (False, None) when torch should make the call.
std::pair<bool, py::object> callBuiltin(const WorkerInfo& to, const std::string& name,
                                        float timeout, const py::tuple& args,
                                        const py::dict& keywords) {
  Stack stack;
  const auto kwargs = py::reinterpret_borrow<py::kwargs>(keywords);
  const auto op = choose(name, args, kwargs, stack);
  if (op == nullptr) return {false, py::none()};
  at::IValue value;
  {
    const py::gil_scoped_release no_gil;
    const Seated seated;
    const auto agent = RpcAgent::getCurrentRpcAgent();
    const auto future = torch::distributed::autograd::sendMessageWithAutograd(
        *agent, to, weft::rpc::encodeBuiltin(op, stack), false, timeout);
    AnswerSeat::wait();
    future->waitAndThrow();
    value = valueOf(*future->constValue().toCustomClass<Message>());
  }
  return {true, torch::jit::toPyObject(std::move(value))};
}

// Gives `value` what `answer` brought.
void settle(JitFuture& value, JitFuture& answer) {
  if (answer.hasError()) {
    value.setError(answer.exception_ptr());
    return;
  }
  try {
    value.markCompleted(valueOf(*answer.constValue().toCustomClass<Message>()), answer.storages());
  } catch (const std::exception&) {
    value.setErrorIfNeeded(std::current_exception());
  }
}

// (True, future), or (False, None) when torch should make the call. torch's futures hold Python
// objects, so each answer takes the GIL, and who makes many calls in a row fights for it at each of
// them. These hold the tensor itself; its Python object is made for who waits.
std::pair<bool, std::shared_ptr<PythonFutureWrapper>> startBuiltin(const WorkerInfo& to,
                                                                   const std::string& name,
                                                                   float timeout,
                                                                   const py::tuple& args,
                                                                   const py::dict& keywords) {
  Stack stack;
  const auto kwargs = py::reinterpret_borrow<py::kwargs>(keywords);
  const auto op = choose(name, args, kwargs, stack);
  // Of a list each waiter would be given another one.
  if (op == nullptr || !returnsTensor(*op)) return {false, nullptr};
  const py::gil_scoped_release no_gil;
  const auto agent = RpcAgent::getCurrentRpcAgent();
  const auto answer = torch::distributed::autograd::sendMessageWithAutograd(
      *agent, to, weft::rpc::encodeBuiltin(op, stack), false, timeout);
  // Of torch's type: an RRef takes its own from the future that a function answers with.
  auto value = answer->createInstance(at::PyObjectType::get());
  answer->addCallback(
      at::wrapPropagateTLSState([value](JitFuture& answered) { settle(*value, answered); }));
  return {true, std::make_shared<PythonFutureWrapper>(std::move(value))};
}

// An RRef, as torch makes it; none when torch should.
std::optional<PyRRef> remoteBuiltin(const WorkerInfo& to, const std::string& name, float timeout,
                                    const py::tuple& args, const py::dict& keywords) {
  Stack stack;
  const auto kwargs = py::reinterpret_borrow<py::kwargs>(keywords);
  const auto op = choose(name, args, kwargs, stack);
  auto& context = RRefContext::getInstance();
  if (op == nullptr || op->schema().returns().empty() || to.id_ == context.getWorkerId()) {
    return std::nullopt;
  }
  const py::gil_scoped_release no_gil;
  const auto agent = RpcAgent::getCurrentRpcAgent();
  const auto rref = context.createUserRRef(to.id_, op->schema().returns().front().type());
  const auto created = torch::distributed::autograd::sendMessageWithAutograd(
      *agent, to, weft::rpc::encodeRemoteBuiltin(op, stack, rref->rrefId(), rref->forkId()), false,
      timeout);
  rref->registerOwnerCreationFuture(created);
  context.addPendingUser(rref->forkId(), rref);
  created->addCallback(at::wrapPropagateTLSState([fork = rref->forkId()](JitFuture& answered) {
    torch::distributed::rpc::callback::confirmPendingUser(answered, fork);
  }));
  return PyRRef(rref);
}

}  // namespace

void weft::rpc::bindCalls(py::module_& module) {
  module.def("_weft_is_current", &weftIsCurrent, "The current RPC agent is Weft's.");
  module.def(
      "_call_builtin", &callBuiltin, py::arg("to"), py::arg("name"), py::arg("timeout"),
      py::arg("args"), py::arg("kwargs"),
      "rpc_sync of a built-in operator: (True, result); (False, None) when torch should do it.");
  module.def(
      "_start_builtin", &startBuiltin, py::arg("to"), py::arg("name"), py::arg("timeout"),
      py::arg("args"), py::arg("kwargs"),
      "rpc_async of a built-in operator: (True, future); (False, None) when torch should do it.");
  module.def("_remote_builtin", &remoteBuiltin, py::arg("to"), py::arg("name"), py::arg("timeout"),
             py::arg("args"), py::arg("kwargs"),
             "remote of a built-in operator: its RRef; None when torch should do it.");
  module.def("_take_seat", &AnswerSeat::take, "This thread will wait for its next call.");
  module.def("_wait_in_seat", &AnswerSeat::wait, py::call_guard<py::gil_scoped_release>(),
             "Waits for that call and completes its future.");
  module.def("_leave_seat", &AnswerSeat::leave, py::call_guard<py::gil_scoped_release>(),
             "After a failure: nobody waits any more.");
}
