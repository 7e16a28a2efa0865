#include "rpc_backend/call/call_completer.h"

#include <torch/csrc/distributed/rpc/utils.h>

#include "rpc_backend/torch_private/torch_rrefs.h"
#include "rpc_backend/trace/call_recorder.h"
#include "transport/base/thrown.h"

namespace weft::rpc {

using torch::distributed::rpc::makeRPCError;
using torch::distributed::rpc::RPCErrorType;

void CallCompleter::complete(const InlineWaiter::Handle& waiter, Completion completion) {
  bool given = false;
  const auto thrown = transport::thrownBy([&] {
    given = waiter.give(completion) || context_.workers.runNext(std::move(completion)) ||
            context_.completers.run(std::move(completion));
  });
  if (given) return;
  // Callbacks are user code, which should run neither on the loop thread nor inside the caller's
  // send(). But once the completers have stopped, or without memory to tell them, no other thread
  // is left.
  if (thrown)
    logWarning("the thread that received the answer of a call also completes it (" + *thrown + ")");
  completion();  // NOLINT(bugprone-use-after-move): both move only what they accept
}

void CallCompleter::fail(PendingCall call, const std::string& text) {
  if (!context_.closed()) {
    context_.metrics.calls_failed.fetch_add(1, std::memory_order_relaxed);
    CallRecorder::get().answered(call.id, 0, /*failed=*/true);
  }
  complete(call.waiter, completion(call, [this, peer = call.peer, asked = askedBy(call),
                                          text](JitFuture& future) {
             const bool lost = group_.lossOf(peer).has_value();
             if (lost) rrefs_.cleanUpAfter(peer);
             if (rrefs_.isMoot(peer, asked.type)) {
               future.markCompleted(RRefLifecycle::ack());
             } else {
               setError(future, asked, text, lost || context_.closed());
             }
           }));
}

void CallCompleter::failAtOnce(const PendingCall& call, const std::string& text) {
  context_.metrics.calls_failed.fetch_add(1, std::memory_order_relaxed);
  context_.metrics.client_calls.decrement();
  call.future->setErrorIfNeeded(callError(call.type, text, context_.closed()));
}

void CallCompleter::setError(JitFuture& future, const Asked& asked, const std::string& text,
                             bool logged) {
  const auto error = callError(asked.type, text, logged);
  torch_rrefs::RRefPtr rref;
  if (createsRRef(asked.type)) rref = markRRef(future, asked.created, context_.closed());
  const auto thrown = transport::thrownBy([&] { future.setErrorIfNeeded(error); });
  if (rref) endWaits(*rref, error, text);
  if (thrown) logInfo("a callback of a failed call threw: " + *thrown);
}

void CallCompleter::endWaits(torch_rrefs::RRef& failed, const std::exception_ptr& error,
                             const std::string& text) {
  if (failed.isOwner()) {
    torch_rrefs::endOwnWaits(failed, error);
  } else if (!text.starts_with(makeRPCError("", RPCErrorType::TIMEOUT))) {
    // After a timeout the value may still come.
    const RRefKey value = fromTorch(failed.rrefId());
    const std::string why = "RRef creation via rpc.remote() failed: " + text;
    failed_creations_.add(value, why);
    for (PendingCall& fetch : calls_.takeFetches(value))
      fail(std::move(fetch), why);
  }
}

}  // namespace weft::rpc
