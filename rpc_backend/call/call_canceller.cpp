#include "rpc_backend/call/call_canceller.h"

#include <torch/csrc/distributed/rpc/utils.h>

#include <algorithm>
#include <utility>

#include "rpc_backend/core/call_kind.h"
#include "rpc_backend/core/log.h"

namespace weft::rpc {

using torch::distributed::rpc::makeRPCError;
using torch::distributed::rpc::RPCErrorType;

namespace {

// Deadlines closer together than this expire together.
constexpr milliseconds kTimerGrain{2};

}  // namespace

std::string timeoutText(milliseconds timeout, bool inherited) {
  std::string text = torch::distributed::rpc::kRpcTimeoutErrorStr;
  text.replace(text.find("{}"), 2, std::to_string(timeout.count()));  // the place-holder is {fmt}'s
  if (inherited) text += " (the time that was left of the call in which it was made)";
  return makeRPCError(text, RPCErrorType::TIMEOUT);
}

void CallCanceller::cancel(std::optional<PendingCall> call) {
  if (!call) return;
  // On the loop thread, which never waits for room in the peer's queue, as this one would.
  sender_.endpoint()->runAfter(milliseconds(0), [this, parts = context_.parts, peer = call->peer,
                                                 type = call->type, id = call->id] {
    if (const auto alive = parts.lock()) giveUp(peer, type, id);
  });
  completer_.fail(std::move(*call), "the wait for the call was interrupted, so it was cancelled");
}

void CallCanceller::watch(Clock::time_point deadline) {
  {
    // An earlier timer makes one for the deadline that is the next by then.
    const std::lock_guard lock(timers_mutex_);
    if (!timers_.empty() && *timers_.begin() <= deadline) return;
    timers_.insert(deadline);
  }
  const auto delay =
      std::chrono::duration_cast<milliseconds>(deadline - Clock::now()) + kTimerGrain;
  try {
    sender_.endpoint()->runAfter(std::max(delay, milliseconds(0)),
                                 [this, parts = context_.parts, deadline] {
                                   if (const auto alive = parts.lock()) expire(deadline);
                                 });
  } catch (...) {
    const std::lock_guard lock(timers_mutex_);
    timers_.erase(deadline);
    throw;
  }
}

void CallCanceller::giveUp(worker_id_t callee, MessageType type, std::uint64_t id) {
  if (!isUserCall(type)) return;
  if (callee == context_.rank) return cancel_own_(id);
  const auto error = sender_.sendControl(callee, WireKind::kControl, ControlType::kCancel, id, {});
  if (error) logDebug("a cancellation was not sent: " + error.text());
}

void CallCanceller::expire(Clock::time_point deadline) {
  {
    const std::lock_guard lock(timers_mutex_);
    timers_.erase(deadline);
  }
  Clock::time_point next;
  for (PendingCall& call : calls_.takeExpired(Clock::now(), next)) {
    context_.metrics.calls_timed_out.fetch_add(1, std::memory_order_relaxed);
    giveUp(call.peer, call.type, call.id);
    const std::string text = timeoutText(call.timeout, call.inherited);
    completer_.fail(std::move(call), text);
  }
  if (next != Clock::time_point::max()) watch(next);
}

}  // namespace weft::rpc
