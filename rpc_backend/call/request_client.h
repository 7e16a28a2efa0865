// RequestClient: the calls that this agent makes: sending, answers, timeouts, failures.
//
// Threads: any; the on...() members run on the loop thread. CallCompleter says on which thread a
// call's future is completed.
// Failure: a call's failure is its future's error: a timeout in torch's words, a lost peer with its
// name and reason, or the remote error. send() throws only for what cannot be encoded, and what
// Ctrl-C's handler raised.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "rpc_backend/call/call_completer.h"
#include "rpc_backend/call/call_range.h"
#include "rpc_backend/call/call_table.h"
#include "rpc_backend/codec/message_sender.h"
#include "rpc_backend/core/call_context.h"
#include "rpc_backend/core/request_policy.h"
#include "rpc_backend/group/group.h"
#include "rpc_backend/rref/rref_service.h"

namespace weft::rpc {

class RequestClient {
 public:
  struct Hooks {
    // Serves a request of this worker to itself, completed with its message on the streams that
    // made it; completeOwn() takes the answer.
    std::function<void(std::uint64_t id, FuturePtr request, Clock::time_point deadline)> serve_own;
    // Loop thread: nobody waits for that one any more.
    std::function<void(std::uint64_t id)> cancel_own;
    // For tests: how long a message is held back. May be empty.
    std::function<milliseconds(MessageType)> delay;
    // For tests: why a message is not sent; nothing: it is. May be empty.
    std::function<std::optional<std::string>(const Message&)> fault;
  };

  RequestClient(AgentContext& context, MessageSender& sender, Group& group, RRefService& rrefs,
                Hooks hooks)
      : context_(context),
        sender_(sender),
        group_(group),
        rrefs_(rrefs),
        hooks_(std::move(hooks)) {}

  // Numbers calls from here on. Before the first.
  void startIdsAt(std::uint64_t id) { calls_.startAt(id); }

  // `timeout` 0: never. A call of the user's ends by the deadline of the call that this thread
  // serves, too; messages about RRefs and distributed autograd's contexts must arrive, and do not.
  // Where max_calls_in_flight to `to` are, it waits for room up to the call's timeout. Without the
  // GIL, and not on the loop thread, which makes room. `quick`: the future's callbacks, Weft's own,
  // neither wait nor call out, and so run on the thread that reads the answer.
  FuturePtr send(worker_id_t to, const MessagePtr& message, milliseconds timeout,
                 const DeviceMap& device_map, bool quick = false);
  // The future of a message that need not be sent.
  FuturePtr acknowledged() const;
  FuturePtr callControl(worker_id_t to, ControlType type, const std::string& text,
                        milliseconds timeout);

  // Whether the call waits for an answer of that peer.
  bool waits(std::uint64_t id, worker_id_t peer) const { return calls_.waits(id, peer); }
  void onAnswer(worker_id_t from, const std::shared_ptr<IncomingMessage>& in);
  void onControlAck(worker_id_t from, const IncomingMessage& in);
  // The request could not be delivered, or its answer not be taken.
  void onSendFailed(worker_id_t to, std::uint64_t id, const std::string& reason);
  void onPeerLost(worker_id_t peer, const std::string& reason);
  // The answer to a request of this worker to itself, completed as for serve_own. Worker thread.
  void completeOwn(std::uint64_t id, const FuturePtr& made);

  // The calls that wait for their answers, the oldest first, at most `most`.
  std::vector<CallTable::Waiting> oldestCalls(std::size_t most) const {
    return calls_.oldest(most);
  }

  // Nobody waits for that call any more: it fails, and its callee is told.
  void cancel(const JitFuture& answer) { cancel(calls_.takeCallOf(answer)); }
  void cancel(const InlineWaiter::Handle& waiter) { cancel(calls_.takeCallOf(waiter)); }

  // Fails all calls. After the endpoint has closed, before the completers stop.
  void close();

 private:
  // A future of this worker's devices.
  FuturePtr newFuture() const;
  // Why the call fails at once: no time is left, no room comes in time where calls are limited, or
  // a test says so. Ctrl-C ends the wait for room; then it gives back `carried` and throws.
  std::optional<std::string> reasonNotToSend(const Message& message, bool over, PendingCall& call,
                                             const RRefLifecycle::Carried& carried);
  FuturePtr start(PendingCall call, std::uint64_t& id);
  // To the flight record and the profiler, if they listen. `range` ends with send().
  void show(worker_id_t to, std::uint64_t id, const Innermost& asked, const Message& message,
            std::optional<CallRange>& range) const;
  // Until the call to that worker is complete. Throws what Ctrl-C's handler raised.
  void awaitHere(worker_id_t to, JitFuture& future);
  void transmit(worker_id_t to, std::uint64_t id, const MessagePtr& message, milliseconds timeout,
                const DeviceMap& map, const RRefLifecycle::Carried& carried);
  void takeAnswer(worker_id_t from, const std::shared_ptr<IncomingMessage>& in, PendingCall& call);
  void readAnswer(worker_id_t from, IncomingMessage& in, const CallCompleter::Asked& asked,
                  JitFuture& future);
  void cancel(std::optional<PendingCall> call);
  // Loop thread. Tells the callee that nobody waits any more.
  void giveUp(worker_id_t callee, MessageType type, std::uint64_t id);
  void armTimer(Clock::time_point deadline);
  void expire();

  AgentContext& context_;
  MessageSender& sender_;
  Group& group_;
  RRefService& rrefs_;
  const Hooks hooks_;
  CallTable calls_;
  CallCompleter completer_{context_, group_, rrefs_, calls_};
  std::mutex timer_mutex_;
  Clock::time_point timer_armed_ = Clock::time_point::max();
};

}  // namespace weft::rpc
