// CallCompleter: completes the future of a call that was taken out of the table, with a value or an
// error. It does so on the thread that waits for the call (InlineWaiter), on the idle worker that
// has read the answer, or else on a completer, because the future's callbacks are user code.
//
// Threads: any. It completes futures with no lock held.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "rpc_backend/call/call_table.h"
#include "rpc_backend/call/rref_creation.h"
#include "rpc_backend/core/call_context.h"
#include "rpc_backend/core/log.h"
#include "rpc_backend/group/group.h"
#include "rpc_backend/rref/rref_service.h"

namespace weft::rpc {

class CallCompleter {
 public:
  // What a call asked for, for the time when it is no longer in the table.
  struct Asked {
    MessageType type{};
    std::optional<ForkIds> created;
    std::optional<std::int64_t> context;
  };
  static Asked askedBy(const PendingCall& call) { return {call.type, call.created, call.context}; }

  // All live as long as this. `calls`: has the fetches that wait for an RRef that was not created.
  CallCompleter(AgentContext& context, Group& group, RRefService& rrefs, CallTable& calls)
      : context_(context), group_(group), rrefs_(rrefs), calls_(calls) {}

  // What completes the call's future by `settle`. Takes the future out of `call`.
  template <typename Settle>
  Completion completion(PendingCall& call, Settle settle);
  // Has it run by the first of these that takes it: the thread that waits for the call, the worker
  // that drives the loop here, a completer. Runs it here if none does.
  void complete(const InlineWaiter::Handle& waiter, Completion completion);
  void fail(PendingCall call, const std::string& text);
  // For a call to this worker that is not sent, on the thread that makes it. The future fails
  // before that thread has it, as with TensorPipe, so no user callback runs here.
  void failAtOnce(const PendingCall& call, const std::string& text);
  // Fails the future of a call, inside its completion. `logged`: the log has the reason already.
  void setError(JitFuture& future, const Asked& asked, const std::string& text,
                bool logged = false);
  // Why the creation of that value failed; nothing: it did not fail, or long ago.
  std::optional<std::string> whyNotCreated(const RRefKey& value) const {
    return failed_creations_.find(value);
  }

 private:
  // Fails the waits for the value of an RRef that was not created.
  void endWaits(torch_rrefs::RRef& failed, const std::exception_ptr& error,
                const std::string& text);

  AgentContext& context_;
  Group& group_;
  RRefService& rrefs_;
  CallTable& calls_;
  FailedCreations failed_creations_;
};

template <typename Settle>
Completion CallCompleter::completion(PendingCall& call, Settle settle) {
  // If there is no memory for this, it throws and the call keeps its future.
  Completion made = [this, alive = context_.keepAlive(), future = call.future,
                     outer_deadline = call.outer_deadline, settle = std::move(settle)] {
    const CallContext outer(outer_deadline);
    const CallScope scope(outer.hasDeadline() ? &outer : CallContext::current());
    try {
      settle(*future);
    } catch (const std::exception& error) {
      // torch's own callbacks throw when an RRef's owner is lost.
      logInfo(std::string("a callback of a call threw: ") + error.what());
    }
    // Counted last, because callbacks may make further calls.
    context_.metrics.client_calls.decrement();
  };
  call.future.reset();  // so that the caller's thread is not the last to hold it
  return made;
}

}  // namespace weft::rpc
