// What rpc_sync, rpc_async and remote run in C++ (weft/_torch/patches/calls.py): calls whose answer
// the thread waits for at once, and built-in operators.
#include <ATen/ThreadLocalState.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/python/answer_value.h"
#include "rpc_backend/python/bindings.h"
#include "rpc_backend/serve/callback/builtin_call.h"
#include "rpc_backend/trace/call_recorder.h"

namespace py = pybind11;

namespace weft::rpc {

namespace {

using torch::distributed::rpc::PyRRef;
using torch::distributed::rpc::RRefContext;
using torch::jit::Operator;
using torch::jit::PythonFutureWrapper;
using torch::jit::Stack;

// torch 2.15 has no named tensors any more.
template <typename Tensor>
bool hasNames(const Tensor& tensor) {
  if constexpr (requires { tensor.has_names(); }) {
    return tensor.has_names();
  } else {
    return false;
  }
}

// Whether the conversion of a value to any type of a schema has no visible effect, so that torch
// may still make the call after some conversions were tried. Other values go to torch untouched. (A
// named tensor, one without a storage or an integer beyond 64 bits ends torch's search with an
// error.)
bool isPlain(PyObject* value) {
  if (value == Py_None || PyBool_Check(value) || PyFloat_CheckExact(value)) return true;
  if (PyLong_CheckExact(value)) {
    int overflow = 0;
    PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0;
  }
  if (!THPVariable_CheckExact(value)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(value);
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         !hasNames(tensor);
}

bool allPlain(const py::tuple& args, const py::kwargs& kwargs) {
  for (const py::handle value : args) {
    if (!isPlain(value.ptr())) return false;
  }
  for (const auto& [keyword, value] : kwargs) {
    if (!isPlain(value.ptr())) return false;
  }
  return true;
}

// Whether torch's conversion (toIValue) of a plain value might succeed. False avoids torch's
// exception, which prints the schema.
bool mayBe(PyObject* value, const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      return value == Py_None ||
             mayBe(value, *type.expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::TensorType:
      return value == Py_None || THPVariable_CheckExact(value);
    case c10::TypeKind::NumberType:
      return value != Py_None && !THPVariable_CheckExact(value);
    default:
      return true;
  }
}

bool mayTake(const c10::FunctionSchema& schema, const py::tuple& args, const py::kwargs& kwargs) {
  const auto& parameters = schema.arguments();
  if (args.size() + kwargs.size() > parameters.size()) return false;
  std::size_t next = 0;
  for (const py::handle value : args) {
    const c10::Argument& parameter = parameters[next++];
    if (parameter.kwarg_only() || !mayBe(value.ptr(), *parameter.real_type())) return false;
  }
  std::size_t used = 0;
  for (; next < parameters.size(); ++next) {
    const c10::Argument& parameter = parameters[next];
    PyObject* const value =
        kwargs.empty() ? nullptr : PyDict_GetItemString(kwargs.ptr(), parameter.name().c_str());
    if (value == nullptr ? !parameter.default_value().has_value()
                         : !mayBe(value, *parameter.real_type())) {
      return false;
    }
    if (value != nullptr) ++used;
  }
  return used == kwargs.size();
}

// torch's choice (matchBuiltinOp): the first overload that takes the arguments, those of the
// dispatcher before the others. The choice may depend on values, such as the element of a tensor
// that has only one, so it cannot be cached. Null: torch should choose.
std::shared_ptr<Operator> choose(const std::string& name, const py::tuple& args,
                                 const py::dict& keywords, Stack& stack) {
  const auto kwargs = py::reinterpret_borrow<py::kwargs>(keywords);
  if (!allPlain(args, kwargs)) return nullptr;
  const auto symbol = at::Symbol::fromQualString(name);
  if (!symbol.is_aten()) return nullptr;
  // A copy: while a conversion lets go of the GIL, another thread may register an operator.
  const std::vector<std::shared_ptr<Operator>> all = torch::jit::getAllOperatorsFor(symbol);
  try {
    for (const bool of_dispatcher : {true, false}) {
      for (const auto& op : all) {
        if (op->isC10Op() != of_dispatcher || !mayTake(op->schema(), args, kwargs)) continue;
        try {
          stack = torch::jit::createStackForSchema(op->schema(), args, kwargs, std::nullopt);
          return op;
        } catch (const torch::jit::schema_match_error&) {
          continue;  // not for these arguments
        }
      }
    }
  } catch (const std::exception&) {
    return nullptr;  // torch reports the error
  }
  return nullptr;
}

bool returnsTensor(const Operator& op) {
  const auto& returns = op.schema().returns();
  return returns.size() == 1 && *returns.front().type() == *at::TensorType::get();
}

FuturePtr send(const WorkerInfo& to, MessagePtr call, float timeout) {
  return torch::distributed::autograd::sendMessageWithAutograd(
      *RpcAgent::getCurrentRpcAgent(), to, std::move(call), /*forceGradRecording=*/false, timeout);
}

// (True, result), or (False, None) when torch should make the call.
std::pair<bool, py::object> callBuiltin(const WorkerInfo& to, const std::string& name,
                                        float timeout, const py::tuple& args,
                                        const py::dict& keywords) {
  Stack stack;
  const auto op = choose(name, args, keywords, stack);
  if (op == nullptr) return {false, py::none()};
  at::IValue value;
  {
    const CallSite site;
    const py::gil_scoped_release no_gil;
    value = valueOf(*answerTo([&] { return send(to, encodeBuiltin(op, stack), timeout); }));
  }
  return {true, torch::jit::toPyObject(std::move(value))};
}

// (True, future), or (False, None) when torch should make the call. torch's futures hold Python
// objects, so each answer takes the GIL from a thread that makes many calls in a row. These futures
// hold the tensor itself; wait() makes its Python object.
std::pair<bool, std::shared_ptr<PythonFutureWrapper>> startBuiltin(const WorkerInfo& to,
                                                                   const std::string& name,
                                                                   float timeout,
                                                                   const py::tuple& args,
                                                                   const py::dict& keywords) {
  Stack stack;
  const auto op = choose(name, args, keywords, stack);
  // A list is left to torch: with this future each waiter would get another list.
  if (op == nullptr || !returnsTensor(*op)) return {false, nullptr};
  const CallSite site;
  const py::gil_scoped_release no_gil;
  const auto answer = send(to, encodeBuiltin(op, stack), timeout);
  // torch's element type: an RRef takes its type from the future that a function returns.
  auto value = futureValue(answer, at::PyObjectType::get(), valueOf);
  return {true, std::make_shared<PythonFutureWrapper>(std::move(value))};
}

// An RRef as torch makes it; nothing when torch should make the call.
std::optional<PyRRef> remoteBuiltin(const WorkerInfo& to, const std::string& name, float timeout,
                                    const py::tuple& args, const py::dict& keywords) {
  Stack stack;
  const auto op = choose(name, args, keywords, stack);
  if (op == nullptr) return std::nullopt;
  TORCH_CHECK(!op->schema().returns().empty(), "rpc.remote(\"", to.name_, "\", ...) of ", name,
              ", which returns nothing that an RRef could refer to; call a function that calls it");
  auto& context = RRefContext::getInstance();
  if (to.id_ == context.getWorkerId()) return std::nullopt;
  const CallSite site;
  const py::gil_scoped_release no_gil;
  const auto rref = context.createUserRRef(to.id_, op->schema().returns().front().type());
  const auto created =
      send(to, encodeRemoteBuiltin(op, stack, rref->rrefId(), rref->forkId()), timeout);
  rref->registerOwnerCreationFuture(created);
  context.addPendingUser(rref->forkId(), rref);
  created->addCallback(at::wrapPropagateTLSState([fork = rref->forkId()](JitFuture& answered) {
    torch::distributed::rpc::callback::confirmPendingUser(answered, fork);
  }));
  return PyRRef(rref);
}

}  // namespace

void bindCalls(py::module_& module) {
  module.def(
      "_weft_is_current", [] { return WeftAgent::current() != nullptr; },
      "The current RPC agent is Weft's.");
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
}

}  // namespace weft::rpc
