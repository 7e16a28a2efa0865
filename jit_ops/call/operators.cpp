// torch.ops.weft: what TorchScript, torch.compile and C++ programs call. Contracts:
// docs/guide/published_modules.md.
//
// Two kinds. Those with a type variable t are TorchScript's own (the dispatcher knows no such
// thing): `like`, an empty list, says what comes back, so that a saved model keeps its types. Those
// in the dispatcher have fixed types, and a meta kernel where tensors come back.
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/library.h>

#include "jit_ops/call/calls.h"
#include "jit_ops/call/tensor_calls.h"
#include "jit_ops/collectives/collectives.h"
#include "jit_ops/serve/service.h"
#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/core/call_context.h"
#include "rpc_backend/core/future_wait.h"
#include "rpc_backend/core/log.h"

namespace weft::ops {

namespace {

using torch::jit::Operator;
using torch::jit::pop;
using torch::jit::push;
using torch::jit::Stack;

// The arguments WEFT_TARGET, with `type` those of `like`, and WEFT_OPTIONS.
Call popCall(Stack& stack, c10::TypePtr* type = nullptr) {
  Call call;
  call.options.timeout = pop(stack).toDouble();
  if (const at::IValue names = pop(stack); !names.isNone())
    call.options.names = names.to<std::vector<std::string>>();
  call.options.version = pop(stack).toInt();
  call.options.method = pop(stack).toStringRef();
  if (type != nullptr) *type = pop(stack).toList().elementType();
  call.args = pop(stack).toList().vec();
  call.name = pop(stack).toStringRef();
  call.worker = pop(stack).toStringRef();
  return call;
}

RRefPtr popRRef(Stack& stack) {
  return c10::dynamic_intrusive_pointer_cast<torch::distributed::rpc::RRef>(pop(stack).toRRef());
}

#define WEFT_TARGET "str worker, str name, Any[] args"
#define WEFT_OPTIONS \
  "*, str method=\"forward\", int version=0, str[]? names=None, float timeout=-1."

// A call has effects elsewhere: nothing may drop, fold or reorder it.
constexpr auto kEffects = c10::AliasAnalysisKind::CONSERVATIVE;

at::IValue remoteValue(Call call, const c10::TypePtr& type) {
  return c10::static_intrusive_pointer_cast<c10::RRefInterface>(callRemote(std::move(call), type));
}

// TorchScript's wait for a future has no stream wait for those of the value. So a future that knows
// devices is complete when a script gets it, and this thread's streams have waited.
FuturePtr completeIfOnDevices(FuturePtr made) {
  if (made->devices().empty()) return made;
  rpc::awaitInterruptibly(*made);
  return made;
}

FuturePtr callCompleteIfOnDevices(Call call, const c10::TypePtr& type) {
  return completeIfOnDevices(callAsync(std::move(call), type));
}

// An operator that calls something published by `make`; `typed`: its arguments have `like`.
template <auto make>
Operator calls(const char* schema, bool typed) {
  const auto run = [typed](Stack& stack) {
    c10::TypePtr type;
    Call call = popCall(stack, typed ? &type : nullptr);
    push(stack, make(std::move(call), type));
  };
  return Operator(schema, run, kEffects);
}

std::vector<std::optional<Operator>> typedOperators() {
  const auto op = [](const char* schema, void (*body)(Stack&)) {
    return Operator(
        schema, [body](Stack& stack) { body(stack); }, kEffects);
  };
  return {
      calls<&call>("weft::call.t(" WEFT_TARGET ", t[] like, " WEFT_OPTIONS ") -> t", true),
      calls<&callCompleteIfOnDevices>(
          "weft::call_async.t(" WEFT_TARGET ", t[] like, " WEFT_OPTIONS ") -> Future(t)", true),
      calls<&remoteValue>("weft::remote.t(" WEFT_TARGET ", t[] like, " WEFT_OPTIONS ") -> RRef(t)",
                          true),
      calls<&call>("weft::call.any(" WEFT_TARGET ", " WEFT_OPTIONS ") -> Any", false),
      calls<&callCompleteIfOnDevices>(
          "weft::call_async.any(" WEFT_TARGET ", " WEFT_OPTIONS ") -> Future(Any)", false),
      op("weft::fetch(RRef(t) rref, float timeout=-1.) -> t",
         [](Stack& stack) {
           const double timeout = pop(stack).toDouble();
           const RRefPtr rref = popRRef(stack);
           push(stack, fetch(rref, timeout, rref->type()));
         }),
      op("weft::fetch_async(RRef(t) rref, float timeout=-1.) -> Future(t)",
         [](Stack& stack) {
           const double timeout = pop(stack).toDouble();
           push(stack, completeIfOnDevices(fetchAsync(popRRef(stack), timeout)));
         }),
      op("weft::drop(RRef(t) rref) -> ()", [](Stack& stack) { drop(popRRef(stack)); }),
      op("weft::owner(RRef(t) rref) -> str",
         [](Stack& stack) { push(stack, popRRef(stack)->ownerName()); }),
  };
}

std::vector<std::string> workers() {
  std::vector<std::string> names;
  for (const auto& info : currentAgent()->getWorkerInfos())
    names.push_back(info.name_);
  return names;
}

std::string lossOf(const std::string& worker) {
  const auto agent = currentAgent();
  const auto* ours = dynamic_cast<const rpc::WeftAgent*>(agent.get());
  TORCH_CHECK(ours != nullptr, "loss_of() needs an RPC group of the backend WEFT");
  return ours->lossOf(agent->getWorkerInfo(worker).id_).value_or("");
}

std::vector<std::string> publishedLines(const std::string& worker) {
  std::vector<std::string> lines;
  for (const PublishedInfo& info : worker.empty() ? published() : publishedBy(worker)) {
    for (const std::string& method : info.methods)
      lines.push_back(info.name + "@" + std::to_string(info.version) + " " + method);
  }
  return lines;
}

void defineDispatched(torch::Library& library) {
  const auto asked = [](const char* schema) { return torch::schema(schema, kEffects); };
  library.def(asked("in_group() -> bool"),
              [] { return torch::distributed::rpc::RpcAgent::isCurrentRpcAgentSet(); });
  library.def(asked("worker_name() -> str"), [] { return currentAgent()->getWorkerInfo().name_; });
  library.def(asked("rank(str worker=\"\") -> int"), [](const std::string& worker) {
    const auto agent = currentAgent();
    return static_cast<std::int64_t>(
        (worker.empty() ? agent->getWorkerInfo() : agent->getWorkerInfo(worker)).id_);
  });
  library.def(asked("workers() -> str[]"), &workers);
  library.def(asked("loss_of(str worker) -> str"), &lossOf);
  library.def(asked("deadline() -> float?"), [] { return rpc::secondsLeft(); });
  library.def(asked("cancelled() -> bool"), [] { return rpc::isCancelled(); });
  library.def(asked("published(str worker=\"\") -> str[]"), &publishedLines);
}

// A program may load two copies of this library (the one beside the Python package, and one it
// was linked with): the first one's operators serve both.
bool registered() {
  installService();
  const auto name = c10::Symbol::fromQualString("weft::call");
  if (!torch::jit::getAllOperatorsFor(name).empty()) {
    rpc::logWarning(
        "libweft.so is loaded twice in this process; what is published through one is not "
        "seen by the other");
    return false;
  }
  const torch::jit::RegisterOperators typed(typedOperators());
  const torch::jit::RegisterOperators asynchronous(asyncCollectives());
  // Never destroyed: torch's own registries may be gone by then.
  auto* library = new torch::Library(torch::Library::DEF, "weft", std::nullopt, __FILE__, __LINE__);
  defineDispatched(*library);
  defineTensorCalls(*library);
  defineCollectives(*library);
  return true;
}

[[maybe_unused]] const bool g_registered = registered();

}  // namespace

}  // namespace weft::ops
