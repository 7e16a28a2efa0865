// RequestClient: the calls that this agent makes. It sends them; AnswerReader takes the answers,
// and CallCanceller ends the calls whose time is up.
//
// Threads: any; the on...() members run on the loop thread. CallCompleter says on which thread a
// call's future is completed.
// Failure: a call's failure is its future's error: a timeout in torch's words, a lost peer with its
// name and reason, or the remote error. send() throws only for what cannot be encoded, and what
// Ctrl-C's handler raised.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "rpc_backend/call/answer_reader.h"
#include "rpc_backend/call/call_canceller.h"
#include "rpc_backend/call/call_completer.h"
#include "rpc_backend/call/call_table.h"
#include "rpc_backend/codec/message_sender.h"
#include "rpc_backend/core/request_policy.h"
#include "rpc_backend/group/group.h"
#include "rpc_backend/rref/rref_service.h"
#include "rpc_backend/trace/call_range.h"

namespace weft::rpc {

class RequestClient {
 public:
  struct Hooks {
    // Serves a request of this worker to itself, completed with its message on the streams that
    // made it; AnswerReader::completeOwn() takes the answer.
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
  // The request could not be delivered, or its answer not be taken.
  void onSendFailed(worker_id_t to, std::uint64_t id, const std::string& reason);
  void onPeerLost(worker_id_t peer, const std::string& reason);

  // The calls that wait for their answers, the oldest first, at most `most`.
  std::vector<CallTable::Waiting> oldestCalls(std::size_t most) const {
    return calls_.oldest(most);
  }

  AnswerReader& answers() noexcept { return answers_; }
  CallCanceller& canceller() noexcept { return canceller_; }

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
  void transmit(worker_id_t to, std::uint64_t id, const MessagePtr& message, milliseconds timeout,
                const DeviceMap& map, const RRefLifecycle::Carried& carried);

  AgentContext& context_;
  MessageSender& sender_;
  Group& group_;
  RRefService& rrefs_;
  const Hooks hooks_;
  CallTable calls_;
  CallCompleter completer_{context_, group_, rrefs_, calls_};
  AnswerReader answers_{context_, sender_, group_, rrefs_, calls_, completer_};
  CallCanceller canceller_{context_, sender_, calls_, completer_, hooks_.cancel_own};
};

}  // namespace weft::rpc
