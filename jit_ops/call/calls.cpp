#include "jit_ops/call/calls.h"

#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/torchscript_functions.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <stdexcept>

#include "jit_ops/call/fetch_hold.h"
#include "jit_ops/call/find_operator.h"
#include "jit_ops/call/recording.h"
#include "jit_ops/serve/plain_errors.h"
#include "jit_ops/serve/service.h"
#include "jit_ops/values/coerce.h"
#include "jit_ops/values/nested_values.h"
#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/call/fetch_in_background.h"
#include "rpc_backend/call/inline_waiter.h"
#include "rpc_backend/core/future_wait.h"
#include "rpc_backend/core/log.h"
#include "rpc_backend/serve/error_text.h"
#include "rpc_backend/serve/sendable.h"
#include "rpc_backend/torch_private/torch_rrefs.h"
#include "transport/base/spin.h"

namespace weft::ops {

namespace trpc = torch::distributed::rpc;

namespace {

// torch's timeouts are floats; its -1 means the group's timeout, as ours does. A very short time
// must not become 0, which means no limit.
float toTorch(double timeout) {
  if (timeout == 0 || timeout == kGroupsTimeout) return static_cast<float>(timeout);
  TORCH_CHECK_VALUE(timeout > 0, "timeout must be a number of seconds that is not negative, got ",
                    timeout);
  return std::max(static_cast<float>(timeout), std::numeric_limits<float>::min());
}

std::string errorOf(const JitFuture& failed) {
  return rpc::withoutStack(failed.tryRetrieveErrorMessage());
}

// torch reads the kind of an error from its first characters, so what Weft adds comes last.
[[noreturn]] void fail(const std::string& text, const std::string& what) {
  throw std::runtime_error(text + " (calling " + what + ")");
}

[[noreturn]] void failType(const at::IValue& value, const c10::TypePtr& type,
                           const std::string& what) {
  fail("the result must be " + type->annotation_str() + ", got " + value.type()->annotation_str(),
       what);
}

// Whether distributed autograd will wait for gradients of the call's arguments.
bool wantsGradients(const Call& call) {
  return inAutogradContext() && at::GradMode::is_enabled() &&
         std::any_of(call.args.begin(), call.args.end(), requiresGrad);
}

// Warns once of a result through which no gradients come back, because torch's engine waits without
// end for each recorded argument that needs gradients.
void warnIfCut(const at::IValue& value, const Call& call) {
  static std::atomic<bool> said{false};
  if (requiresGrad(value) || said.exchange(true)) return;
  rpc::logWarning("the result of " + describe(call) +
                  " needs no gradients, but arguments of the call do: "
                  "torch.distributed.autograd.backward() in this context waits for them forever. "
                  "Call it with detached tensors (x.detach())");
}

Values toStack(Call& call, std::size_t extra) {
  Values stack;
  stack.reserve(extra + kCallHeader + call.args.size());
  stack.resize(extra);
  stack.emplace_back(call.name);
  stack.emplace_back(call.options.version);
  stack.emplace_back(call.options.method);
  stack.push_back(call.options.names.empty() ? at::IValue() : at::IValue(call.options.names));
  for (std::size_t i = 0; i < call.args.size(); ++i) {
    TORCH_CHECK_TYPE(!rpc::holdsObject(call.args[i]), "argument ", i, rpc::kHasObject,
                     "; pass its attributes, or the member's value (calling ", describe(call), ")");
    stack.push_back(withoutNames(std::move(call.args[i])));
  }
  return stack;
}

// A future of the answer's Message. `worker` is a name or an id. Autograd records the call even if
// no argument needs a gradient, because the module's parameters may. Without a graph here no
// gradients could come back, and a backward pass would wait for them.
FuturePtr send(const auto& worker, trpc::RpcCommandBase&& request, double timeout) {
  const auto agent = currentAgent();
  if (!at::GradMode::is_enabled())
    return agent->send(agent->getWorkerInfo(worker), std::move(request).toMessage(),
                       toTorch(timeout));
  return torch::distributed::autograd::sendMessageWithAutograd(
      *agent, agent->getWorkerInfo(worker), std::move(request).toMessage(),
      /*forceGradRecording=*/true, toTorch(timeout));
}

FuturePtr send(Call& call) {
  static const c10::QualifiedName plain(kCallName);
  static const c10::QualifiedName named(kNamedCallName);
  const c10::QualifiedName& name = call.with_names == nullptr ? plain : named;
  return send(call.worker, trpc::ScriptCall(name, toStack(call, 0)), call.options.timeout);
}

at::IValue valueOf(const JitFuture& answered) {
  return trpc::deserializeRespToIValue(*answered.constValue().toCustomClass<trpc::Message>());
}

void checkFetchable(const trpc::RRef& rref) {
  if (rref.isPyObj()) {
    throw std::runtime_error("the RRef at worker '" + rref.ownerName() +
                             "' holds a Python object, which only Python can fetch");
  }
  if (rpc::torch_rrefs::wasDropped(rref) || FetchHold::isDropped(rref)) {
    throw std::runtime_error("the RRef at worker '" + rref.ownerName() +
                             "' was dropped here, and cannot be fetched any more");
  }
  if (rref.getTimedOut()) {
    throw std::runtime_error("the RRef at worker '" + rref.ownerName() +
                             "' has no value: the call that was to make it failed");
  }
}

// The future of a value of this worker's own.
FuturePtr ownValue(trpc::OwnerRRef& rref) {
  const auto agent = rpc::WeftAgent::current();
  const bool ended = rref.hasValue() || rref.getTimedOut();
  if (agent && !ended) agent->rrefs().onOwnWait(rref.rrefId());
  return rref.getFuture();
}

// The caller's value from the answer to `call`. `wanted`: its arguments, which are gone, wanted
// gradients.
at::IValue resultOf(const Call& call, bool wanted, const c10::TypePtr& type,
                    const JitFuture& answered) {
  if (answered.hasError()) fail(errorOf(answered), describe(call));
  at::IValue value = valueOf(answered);
  if (wanted) warnIfCut(value, call);
  if (call.with_names != nullptr) value = call.with_names(std::move(value));
  if (type == nullptr || coerce(value, type)) return value;
  failType(value, type, describe(call));
}

}  // namespace

std::string describe(const Call& call) {
  const std::string version =
      call.options.version == kNewest ? "" : " version " + std::to_string(call.options.version);
  return call.name + "." + call.options.method + version + " at worker '" + call.worker + "'";
}

std::shared_ptr<trpc::RpcAgent> currentAgent() {
  if (!trpc::RpcAgent::isCurrentRpcAgentSet()) {
    throw std::runtime_error(
        "this process is in no RPC group: join one first (weft.init_rpc or rpc.init_rpc in Python, "
        "weft::Group::join in C++)");
  }
  return trpc::RpcAgent::getCurrentRpcAgent();
}

at::IValue waitFor(JitFuture& future) try {
  thread_local transport::AdaptiveSpin spin;
  spin.until([&] { return future.completed(); });
  rpc::awaitInterruptibly(future);
  if (future.hasError()) throw std::runtime_error(errorOf(future));
  return future.value();
} catch (const c10::Error& error) {
  throwWithoutStack(error);
}

at::IValue call(Call call, const c10::TypePtr& type) try {
  const rpc::ScopedInlineWaiter waiter;
  const bool wanted = wantsGradients(call);
  const FuturePtr answer = send(call);
  rpc::WeftAgent::awaitAnswer(*answer);
  return resultOf(call, wanted, type, *answer);
} catch (const c10::Error& error) {
  throwWithoutStack(error);
}

FuturePtr callAsync(Call call, const c10::TypePtr& type) try {
  const bool wanted = wantsGradients(call);
  const FuturePtr answer = send(call);
  call.args.clear();
  return answer->then([call = std::move(call), wanted, type](
                          JitFuture& answered) { return resultOf(call, wanted, type, answered); },
                      type == nullptr ? c10::TypePtr(c10::AnyType::get()) : type);
} catch (const c10::Error& error) {
  throwWithoutStack(error);
}

RRefPtr callRemote(Call call, const c10::TypePtr& type) try {
  static const c10::QualifiedName name(kRemoteName);
  const c10::TypePtr element =
      type == nullptr ? c10::TypePtr(c10::AnyType::get()) : withoutNames(type);
  currentAgent();
  Values stack = toStack(call, 1);
  stack[0] = c10::List<at::IValue>(element);
  // torch reads only the type of the RRef's value from the schema.
  const c10::FunctionSchema schema("remote", "", {}, {c10::Argument("", element)});
  const NotRecordedWithoutGradients recorded;
  return trpc::remoteTorchscript(call.worker, name, schema, stack, toTorch(call.options.timeout));
} catch (const c10::Error& error) {
  throwWithoutStack(error);
}

FuturePtr fetchAsync(const RRefPtr& rref, double timeout) try {
  if (rref->isOwner()) return ownValue(*c10::static_intrusive_pointer_cast<trpc::OwnerRRef>(rref));
  checkFetchable(*rref);
  // The request waits at the owner if the value is not there yet.
  const auto here = currentAgent()->getWorkerInfo().id_;
  const auto hold = std::make_shared<const FetchHold>(rref);
  const FuturePtr answer = [&] {
    const rpc::FetchInBackground background;
    return send(rref->owner(), trpc::ScriptRRefFetchCall(here, rref->rrefId()), timeout);
  }();
  return answer->then(at::wrapPropagateTLSState([hold](JitFuture& answered) {
                        if (answered.hasError()) throw std::runtime_error(errorOf(answered));
                        trpc::MessageType type = trpc::MessageType::UNKNOWN;
                        const auto response = trpc::deserializeResponse(
                            *answered.constValue().toCustomClass<trpc::Message>(), type);
                        return static_cast<trpc::RRefFetchRet&>(*response).values().front();
                      }),
                      rref->type());
} catch (const c10::Error& error) {
  throwWithoutStack(error);
}

at::IValue fetch(const RRefPtr& rref, double timeout, const c10::TypePtr& type) try {
  at::IValue value;
  if (rref->isOwner()) {
    value = waitFor(*fetchAsync(rref, timeout));
  } else {
    checkFetchable(*rref);
    const NotRecordedWithoutGradients recorded;
    value = c10::static_intrusive_pointer_cast<trpc::UserRRef>(rref)->toHere(toTorch(timeout));
  }
  if (type == nullptr || coerce(value, type)) return value;
  failType(value, type, "to_here of a value at worker '" + rref->ownerName() + "'");
} catch (const c10::Error& error) {
  throwWithoutStack(error);
}

void drop(const RRefPtr& rref) try { FetchHold::drop(*rref); } catch (const c10::Error& error) {
  throwWithoutStack(error);
}

FuturePtr callOperator(Call call, const c10::TypePtr& type) try {
  TORCH_CHECK(call.options.method == kForward && call.options.version == kNewest, "the operator ",
              call.name,
              " has no methods and no versions: leave CallOptions' method and version out");
  const auto found = findOperator(call.name, call.args, call.options.names);
  const std::size_t results = found->schema().returns().size();
  TORCH_CHECK(results == 1, "the operator ", found->schema(), " has ", results,
              " results, and torch's RPC sends one: publish a function that returns a tuple");
  Values stack = bindArguments(found->schema(), std::move(call.args), call.options.names);
  std::string what = call.name + " at worker '" + call.worker + "'";
  return send(call.worker, trpc::ScriptCall(found, std::move(stack)), call.options.timeout)
      ->then(
          [what = std::move(what), type](JitFuture& answered) {
            if (answered.hasError()) fail(errorOf(answered), what);
            at::IValue value = valueOf(answered);
            if (type != nullptr && !coerce(value, type)) failType(value, type, what);
            return value;
          },
          type == nullptr ? c10::TypePtr(c10::AnyType::get()) : type);
} catch (const c10::Error& error) {
  throwWithoutStack(error);
}

std::vector<PublishedInfo> publishedBy(const std::string& worker, double timeout) try {
  static const c10::QualifiedName name(kListName);
  const FuturePtr answer = send(worker, trpc::ScriptCall(name, Values{}), timeout);
  waitFor(*answer);
  const at::IValue rows = valueOf(*answer);
  std::vector<PublishedInfo> out;
  for (const at::IValue& row : rows.toTupleRef().elements()) {
    const auto& columns = row.toTupleRef().elements();
    PublishedInfo info{columns.at(0).toStringRef(), columns.at(1).toInt(), {}};
    for (const at::IValue& method : columns.at(2).toListRef())
      info.methods.push_back(method.toStringRef());
    out.push_back(std::move(info));
  }
  return out;
} catch (const c10::Error& error) {
  throwWithoutStack(error);
}

}  // namespace weft::ops
