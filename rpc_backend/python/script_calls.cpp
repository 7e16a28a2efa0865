// rpc_sync and rpc_async of a TorchScript function (weft/_torch/patches/calls.py): a call whose
// answer cannot be read fails.
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/python_rpc_handler.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/torchscript_functions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "rpc_backend/python/answer_value.h"
#include "rpc_backend/python/bindings.h"
#include "rpc_backend/serve/error_text.h"
#include "rpc_backend/serve/sendable.h"
#include "rpc_backend/trace/call_recorder.h"

namespace py = pybind11;

namespace weft::rpc {

namespace {

using torch::distributed::rpc::PythonRpcHandler;
using torch::distributed::rpc::ScriptCall;
using torch::jit::PythonFutureWrapper;
using torch::jit::Stack;

std::string whyUnreadable(const std::exception& error) {
  // torch reads answers without what would make such an object.
  if (dynamic_cast<const std::bad_function_call*>(&error) != nullptr)
    return "it has an object of a TorchScript class, which torch cannot send; return its "
           "attributes";
  return withoutStack(error.what());
}

// The answer's value. `call` says what was called, and where, in the error.
at::IValue read(const JitFuture& answer, const std::string& call) try {
  return valueOf(answer);
} catch (const std::exception& error) {
  throw std::runtime_error("cannot read the answer of " + call + ": " + whyUnreadable(error));
}

struct ScriptFunctionCall {
  std::string worker;
  c10::QualifiedName name;
  const c10::FunctionSchema& schema;
  Stack stack;
  float timeout;
  bool async_execution;

  std::string describe() const { return "worker '" + worker + "' to " + name.qualifiedName(); }
};

void checkArguments(const c10::FunctionSchema& schema, const Stack& stack) {
  for (std::size_t i = 0; i < stack.size(); ++i)
    TORCH_CHECK(!holdsObject(stack[i]), schema.name(), " cannot be called on another worker: '",
                schema.arguments()[i].name(), "'", kHasObject,
                "; pass its attributes, or the member's value");
}

ScriptFunctionCall toCall(std::string worker, const std::string& function, const py::tuple& args,
                          const py::dict& keywords, float timeout, bool async_execution) {
  c10::QualifiedName name(function);
  const auto unit = PythonRpcHandler::getInstance().jitCompilationUnit();
  const c10::FunctionSchema& schema = unit->get_function(name).getSchema();
  Stack stack;
  {
    const py::gil_scoped_acquire gil;
    stack = torch::jit::createStackForSchema(schema, py::reinterpret_borrow<py::args>(args),
                                             py::reinterpret_borrow<py::kwargs>(keywords),
                                             std::nullopt);
  }
  checkArguments(schema, stack);
  return {std::move(worker), std::move(name), schema, std::move(stack), timeout, async_execution};
}

FuturePtr send(ScriptFunctionCall& call) {
  const auto agent = RpcAgent::getCurrentRpcAgent();
  auto message = ScriptCall(call.name, std::move(call.stack), call.async_execution).toMessage();
  return torch::distributed::autograd::sendMessageWithAutograd(
      *agent, agent->getWorkerInfo(call.worker), std::move(message), /*forceGradRecording=*/true,
      call.timeout);
}

// As pyRpcTorchscript, whose future stays incomplete when the answer cannot be read.
std::shared_ptr<PythonFutureWrapper> startScript(const std::string& worker,
                                                 const std::string& function, const py::tuple& args,
                                                 const py::dict& keywords, float timeout,
                                                 bool async_execution) {
  const CallSite site;
  const py::gil_scoped_release no_gil;
  ScriptFunctionCall call = toCall(worker, function, args, keywords, timeout, async_execution);
  // torch's own has the range that the profiler shows.
  if (torch::autograd::profiler::profilerEnabled()) {
    return std::make_shared<PythonFutureWrapper>(torch::distributed::rpc::rpcTorchscript(
        worker, call.name, call.schema, std::move(call.stack), timeout, async_execution));
  }
  const auto answer = send(call);
  return std::make_shared<PythonFutureWrapper>(futureValue(
      answer, call.schema.returns().at(0).type(),
      [what = call.describe()](const JitFuture& answered) { return read(answered, what); }));
}

// The same, waited for.
py::object callScript(const std::string& worker, const std::string& function, const py::tuple& args,
                      const py::dict& keywords, float timeout, bool async_execution) {
  at::IValue value;
  {
    const CallSite site;
    const py::gil_scoped_release no_gil;
    ScriptFunctionCall call = toCall(worker, function, args, keywords, timeout, async_execution);
    value = read(*answerTo([&] { return send(call); }), call.describe());
  }
  return torch::jit::toPyObject(std::move(value));
}

}  // namespace

void bindScriptCalls(py::module_& module) {
  const auto define = [&](const char* name, auto function, const char* doc) {
    module.def(name, function, py::arg("worker"), py::arg("function"), py::arg("args"),
               py::arg("kwargs"), py::arg("timeout"), py::arg("async_execution"), doc);
  };
  define("_call_script", &callScript, "rpc_sync of a TorchScript function: what it returned.");
  define("_start_script", &startScript,
         "rpc_async of a TorchScript function: a future, which fails when its answer cannot be "
         "read.");
}

}  // namespace weft::rpc
