#include "jit_ops/call/calls.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/torchscript_functions.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "jit_ops/call/remote_backward_context.h"
#include "jit_ops/serve/service.h"
#include "jit_ops/values/coerce.h"
#include "jit_ops/values/held_gradients.h"
#include "rpc_backend/agent/scoped_inline_waiter.h"
#include "rpc_backend/core/log.h"
#include "transport/base/spin.h"

namespace weft::ops {

namespace trpc = torch::distributed::rpc;

namespace {

trpc::RpcAgent& agent() {
  if (!trpc::RpcAgent::isCurrentRpcAgentSet()) {
    throw std::runtime_error(
        "this process is in no RPC group: join one first (weft.init_rpc or rpc.init_rpc in Python, "
        "weft::Group::join in C++)");
  }
  return *trpc::RpcAgent::getCurrentRpcAgent();
}

float toTorch(double timeout) {
  return timeout < 0 ? trpc::kUnsetRpcTimeout : static_cast<float>(timeout);
}

std::string describe(const Call& call) {
  const std::string version =
      call.version == kNewest ? "" : " version " + std::to_string(call.version);
  return call.name + "." + call.method + version + " at worker '" + call.worker + "'";
}

// torch reads the kind of an error from its first characters: so what Weft adds comes last.
[[noreturn]] void fail(const std::string& text, const std::string& what) {
  throw std::runtime_error(text + " (calling " + what + ")");
}

[[noreturn]] void failType(const at::IValue& value, const c10::TypePtr& type,
                           const std::string& what) {
  fail("the result must be " + type->annotation_str() + ", but " + value.type()->annotation_str() +
           " came",
       what);
}

at::IValue typed(at::IValue value, const c10::TypePtr& type, const std::string& what) {
  if (type == nullptr || coerce(value, type)) return value;
  failType(value, type, what);
}

// Whether distributed autograd will wait for gradients of these.
bool wantsGradients(const Call& call) {
  return !call.ends_gradients && inAutogradContext() && at::GradMode::is_enabled() &&
         std::any_of(call.args.begin(), call.args.end(), holdsGradients);
}

// Of a call that wants gradients: torch's engine waits for each recorded argument, without end,
// whatever came of it.
void warnIfCut(const at::IValue& value, const std::string& what) {
  static std::atomic<bool> said{false};
  if (holdsGradients(value) || said.exchange(true)) return;
  rpc::logWarning("what came of " + what +
                  " needs no gradients, but arguments of the call do: "
                  "torch.distributed.autograd.backward() in this context waits for them forever. "
                  "Give it detached tensors (x.detach())");
}

Values toStack(Call& call, std::size_t extra) {
  Values stack;
  stack.reserve(extra + kCallHeader + call.args.size());
  stack.resize(extra);
  stack.emplace_back(call.name);
  stack.emplace_back(call.version);
  stack.emplace_back(call.method);
  if (call.names.empty()) {
    stack.emplace_back();
  } else {
    stack.emplace_back(call.names);
  }
  for (at::IValue& arg : call.args)
    stack.push_back(withoutNames(std::move(arg)));
  return stack;
}

// A future of the answer's Message.
FuturePtr send(const std::string& worker, trpc::ScriptCall&& call, double timeout) {
  trpc::RpcAgent& here = agent();
  // Gradients are recorded also when no argument needs one: the module's parameters may.
  return torch::distributed::autograd::sendMessageWithAutograd(
      here, here.getWorkerInfo(worker), std::move(call).toMessage(), /*forceGradRecording=*/true,
      toTorch(timeout));
}

at::IValue valueOf(const Future& answered) {
  return trpc::deserializeRespToIValue(*answered.constValue().toCustomClass<trpc::Message>());
}

FuturePtr send(Call& call) {
  static const c10::QualifiedName plain(kCallName);
  static const c10::QualifiedName named(kNamedCallName);
  const c10::QualifiedName& name = call.with_names == nullptr ? plain : named;
  return send(call.worker, trpc::ScriptCall(name, toStack(call, 0)), call.timeout);
}

std::shared_ptr<torch::jit::Operator> findOperator(const std::string& name, const Values& args) {
  const auto dot = name.find('.');
  const auto symbol = c10::Symbol::fromQualString(name.substr(0, dot));
  for (const auto& op : torch::jit::getAllOperatorsFor(symbol)) {
    if (dot != std::string::npos) {
      if (op->schema().overload_name() == name.substr(dot + 1)) return op;
      continue;
    }
    try {
      bindArguments(op->schema(), args, {});
      return op;
    } catch (const c10::Error&) {  // this overload takes something else
    }
  }
  TORCH_CHECK(false, "torch has no operator ", name, " that takes these ", args.size(),
              " arguments");
}

void checkFetchable(const trpc::RRef& rref) {
  if (rref.isPyObj()) {
    throw std::runtime_error("the RRef at worker '" + rref.ownerName() +
                             "' holds a Python object, which only Python can fetch");
  }
  if (rref.getTimedOut()) {
    throw std::runtime_error("the RRef at worker '" + rref.ownerName() +
                             "' has no value: the call that was to make it failed");
  }
}

}  // namespace

at::IValue waitFor(Future& future) {
  thread_local transport::AdaptiveSpin spin;
  if (!spin.until([&] { return future.completed(); })) future.wait();
  if (future.hasError()) throw std::runtime_error(future.tryRetrieveErrorMessage());
  return future.value();
}

at::IValue call(Call call, const c10::TypePtr& type) {
  const rpc::ScopedInlineWaiter seated;
  const bool wanted = wantsGradients(call);
  const FuturePtr answer = send(call);
  rpc::InlineWaiter::wait();
  try {
    waitFor(*answer);
  } catch (const std::exception& error) {
    fail(error.what(), describe(call));
  }
  at::IValue value = valueOf(*answer);
  if (wanted) warnIfCut(value, describe(call));
  if (call.with_names != nullptr) value = call.with_names(std::move(value));
  if (type == nullptr || coerce(value, type)) return value;
  failType(value, type, describe(call));
}

FuturePtr callAsync(Call call, const c10::TypePtr& type) {
  const std::string what = describe(call);
  const bool wanted = wantsGradients(call);
  auto* const with_names = call.with_names;
  return send(call)->then(
      [type, what, wanted, with_names](Future& answered) {
        if (answered.hasError()) fail(answered.tryRetrieveErrorMessage(), what);
        at::IValue value = valueOf(answered);
        if (wanted) warnIfCut(value, what);
        if (with_names != nullptr) value = with_names(std::move(value));
        return typed(std::move(value), type, what);
      },
      type == nullptr ? c10::TypePtr(c10::AnyType::get()) : type);
}

RRefPtr callRemote(Call call, const c10::TypePtr& type) {
  static const c10::QualifiedName name(kRemoteName);
  const c10::TypePtr element =
      type == nullptr ? c10::TypePtr(c10::AnyType::get()) : withoutNames(type);
  agent();
  Values stack = toStack(call, 1);
  stack[0] = c10::List<at::IValue>(element);
  // torch reads from a schema what the RRef holds, and nothing else.
  const c10::FunctionSchema schema("remote", "", {}, {c10::Argument("", element)});
  return trpc::remoteTorchscript(call.worker, name, schema, stack, toTorch(call.timeout));
}

FuturePtr fetchAsync(const RRefPtr& rref, double timeout) {
  if (rref->isOwner()) {
    return c10::static_intrusive_pointer_cast<trpc::OwnerRRef>(rref)->getFuture();
  }
  checkFetchable(*rref);
  const auto user = c10::static_intrusive_pointer_cast<trpc::UserRRef>(rref);
  // The value is at its owner, which may not know of it yet: it waits there.
  trpc::RpcAgent& here = agent();
  auto request = trpc::ScriptRRefFetchCall(here.getWorkerInfo().id_, user->rrefId()).toMessage();
  auto answer = torch::distributed::autograd::sendMessageWithAutograd(
      here, here.getWorkerInfo(user->owner()), std::move(request), /*forceGradRecording=*/true,
      toTorch(timeout));
  return answer->then(
      [](Future& answered) {
        if (answered.hasError()) throw std::runtime_error(answered.tryRetrieveErrorMessage());
        trpc::MessageType type = trpc::MessageType::UNKNOWN;
        const auto response =
            trpc::deserializeResponse(*answered.constValue().toCustomClass<trpc::Message>(), type);
        return static_cast<trpc::RRefFetchRet&>(*response).values().front();
      },
      rref->type());
}

at::IValue fetch(const RRefPtr& rref, double timeout, const c10::TypePtr& type) {
  at::IValue value;
  if (rref->isOwner()) {
    value = waitFor(*fetchAsync(rref, timeout));
  } else {
    checkFetchable(*rref);
    value = c10::static_intrusive_pointer_cast<trpc::UserRRef>(rref)->toHere(toTorch(timeout));
  }
  return typed(std::move(value), type, "to_here of a value at worker '" + rref->ownerName() + "'");
}

void drop(const RRefPtr& rref) { rref->tryDel(); }

FuturePtr callOperator(const std::string& worker, const std::string& op, Values args,
                       double timeout) {
  const auto found = findOperator(op, args);
  Values stack = bindArguments(found->schema(), std::move(args), {});
  return send(worker, trpc::ScriptCall(found, std::move(stack)), timeout)
      ->then(
          [op, worker](Future& answered) {
            if (answered.hasError())
              fail(answered.tryRetrieveErrorMessage(), op + " at worker '" + worker + "'");
            return valueOf(answered);
          },
          c10::AnyType::get());
}

std::vector<PublishedInfo> publishedBy(const std::string& worker, double timeout) {
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
}

}  // namespace weft::ops
