// RequestClient: the calls that this agent makes. It sends them; AnswerReader takes the answers,
// and CallCanceller ends the calls whose time is up.
//
// Threads: any; the on...() members run on the loop thread. CallCompleter says on which thread a
// call's future is completed.
// Failure: a call that fails completes its future with an error: a timeout in torch's words, a lost
// peer with its name and reason, or the remote error. send() throws only if the message cannot be
// encoded, or what Ctrl-C's handler raised.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "rpc_backend/call/answer_reader.h"
#include "rpc_backend/call/call_canceller.h"
#include "rpc_backend/call/call_completer.h"
#include "rpc_backend/call/call_table.h"
#include "rpc_backend/call/rref_decliner.h"
#include "rpc_backend/codec/message_sender.h"
#include "rpc_backend/core/innermost.h"
#include "rpc_backend/group/group.h"
#include "rpc_backend/rref/rref_service.h"
#include "rpc_backend/trace/call_range.h"

namespace weft::rpc {

class RequestClient {
 public:
  struct Hooks {
    // Serves a request of this worker to itself. `request` holds the message, and was completed on
    // the streams that made it. AnswerReader::completeOwn() takes the answer.
    std::function<void(std::uint64_t id, FuturePtr request, Clock::time_point deadline)> serve_own;
    // Cancels such a request: nobody waits for it any more. Loop thread.
    std::function<void(std::uint64_t id)> cancel_own;
    // For tests: how long a message is held back. May be empty.
    std::function<milliseconds(MessageType)> delay;
    // For tests: the reason not to send a message; nothing: it is sent. May be empty.
    std::function<std::optional<std::string>(const Message&)> fault;
  };

  RequestClient(AgentContext& context, MessageSender& sender, Group& group, RRefService& rrefs,
                Hooks hooks)
      : context_(context),
        sender_(sender),
        group_(group),
        rrefs_(rrefs),
        hooks_(std::move(hooks)) {}

  // The number of the first call. Before any call is made.
  void startIdsAt(std::uint64_t id) { calls_.startAt(id); }

  // Sends a request to `to`; the future gets its answer. A fetch (isFetch()) waits until then, but
  // for FetchInBackground.
  //
  // `timeout` 0: never. A call that the user makes also ends by the deadline of the request that
  // this thread serves. Messages about RRefs and distributed autograd's contexts do not inherit it,
  // because they must arrive.
  // If max_calls_in_flight calls to `to` are in flight, or its queue is full, send() waits for
  // room, at most for the call's timeout; for room in the queue at most kRoomWait. So call it
  // without the GIL, and not on the loop thread, which makes room.
  // `quick`: the future's callbacks are Weft's own and neither wait nor call out, so the thread
  // that reads the answer may run them.
  FuturePtr send(worker_id_t to, const MessagePtr& message, milliseconds timeout,
                 const DeviceMap& device_map, bool quick = false);
  // The future of a message that need not be sent.
  FuturePtr acknowledged() const;
  FuturePtr callControl(worker_id_t to, ControlType type, const std::string& text,
                        milliseconds timeout);

  // Whether the call waits for an answer from that peer.
  bool waits(std::uint64_t id, worker_id_t peer) const { return calls_.waits(id, peer); }
  // The request could not be delivered, or its answer could not be taken.
  void onSendFailed(worker_id_t to, std::uint64_t id, const std::string& reason);
  void onPeerLost(worker_id_t peer, const std::string& reason);

  // The calls that wait for their answers, the oldest first, at most `most`.
  std::vector<WaitingCall> oldestCalls(std::size_t most) const { return calls_.oldest(most); }

  AnswerReader& answers() noexcept { return answers_; }
  CallCanceller& canceller() noexcept { return canceller_; }
  RRefDecliner& decliner() noexcept { return decliner_; }

  // Fails all calls. After the endpoint has closed, before the completers stop.
  void close();

 private:
  // A future of this worker's devices.
  FuturePtr newFuture() const;
  // Why the call fails at once: its time is `over`, no room comes in time (max_calls_in_flight), or
  // a test says so. Sets call.counted if the call took room. Throws when Ctrl-C ends the wait for
  // room.
  std::optional<std::string> reasonNotToSend(const Message& message, bool over, PendingCall& call);
  // Nobody gets the call's future: nothing of the call is left. Idempotent.
  void forget(worker_id_t to, std::uint64_t id, const RRefLifecycle::Carried& carried);
  // Puts the call into the table, with a future and the thread's waiter; sets its `id`.
  FuturePtr start(PendingCall call, std::uint64_t& id);
  // The context whose gradients the message brings lives until `future` is complete.
  static void keepContext(const Message& gradients, JitFuture& future);
  // Fails a started call that is not sent.
  void failUnsent(worker_id_t to, std::uint64_t id, const Innermost& asked, const std::string& why);
  void awaitFetch(worker_id_t to, JitFuture& future);
  std::string closedText() const;
  // Shows the call to the flight record and the profiler, if they listen. The caller ends `range`
  // when the call is sent.
  void show(worker_id_t to, std::uint64_t id, const Innermost& asked, const Message& message,
            std::optional<CallRange>& range) const;
  void transmit(worker_id_t to, std::uint64_t id, const MessagePtr& message, milliseconds timeout,
                const DeviceMap& map, const RRefLifecycle::Carried& carried);

  AgentContext& context_;
  MessageSender& sender_;
  Group& group_;
  RRefService& rrefs_;
  const Hooks hooks_;
  CallTable calls_;
  CallCompleter completer_{context_, group_, rrefs_, calls_};
  RRefDecliner decliner_{context_, sender_, group_, rrefs_, *this};
  AnswerReader answers_{context_, sender_, group_, rrefs_, calls_, completer_, decliner_};
  CallCanceller canceller_{context_, sender_, calls_, completer_, hooks_.cancel_own};
};

}  // namespace weft::rpc
