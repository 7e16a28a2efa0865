// RequestServer: the requests that other workers, and this one, make here: which are admitted, how
// they run, and how they are answered.
//
// Threads: the on...() members, admits() and hold() run on the loop thread, which reads no payload
// of a request; requests run on workers. A request whose result comes later is answered by the
// thread that completes the result.
// Devices: a request runs on streams of its own, after the work of those that its caller has had
// answers of.
// Failure: whatever a request throws is its answer. A request whose caller has given up, or whose
// deadline has passed, before it begins is not run.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>

#include "rpc_backend/trace/call_recorder.h"
#include "rpc_backend/call/request_client.h"
#include "rpc_backend/serve/asked_calls.h"
#include "rpc_backend/serve/call_order.h"
#include "rpc_backend/serve/rref_decliner.h"

namespace weft::rpc {

class RequestServer {
 public:
  RequestServer(AgentContext& context, MessageSender& sender, Group& group, RRefService& rrefs,
                RequestClient& client, std::unique_ptr<RequestCallback> callback)
      : context_(context),
        sender_(sender),
        group_(group),
        rrefs_(rrefs),
        client_(client),
        callback_(std::move(callback)),
        decliner_(context, sender, group, rrefs, client) {}

  // Whether a request of `bytes` in all is taken in. If not, the refusal is its answer.
  bool admits(worker_id_t from, const WireHeader& head, std::uint64_t bytes);
  // Counts so many bytes of what a peer asks for beside requests among those of its requests, until
  // the result is dropped. Null: they would exceed the limit.
  std::shared_ptr<void> hold(worker_id_t from, std::uint64_t bytes);
  // Answers a request that has not been read with the refusal.
  void refuse(worker_id_t from, const WireHeader& head, const std::string& why);
  void onRequest(worker_id_t from, std::shared_ptr<IncomingMessage> in);
  // The caller has given up its request: it does not run if it has not begun.
  void onCancel(worker_id_t from, std::uint64_t id);
  // As if it had given up all of them.
  void onPeerLost(worker_id_t peer);
  // Any thread. `request`: completed with the message, on the streams that made it.
  void onOwnRequest(std::uint64_t id, FuturePtr request, Clock::time_point deadline);
  // Any thread: as onCancel().
  void onCancelOwn(std::uint64_t id);
  // Of metrics.requests_refused, those that the policy refused; the others exceeded a limit.
  std::uint64_t refusedByPolicy() const {
    return refused_by_policy_.load(std::memory_order_relaxed);
  }

 private:
  struct Asker;
  class InFlight;
  struct Peer {
    std::atomic<std::uint64_t> held{0};  // bytes of what it asked for and waits or runs here
    AskedCalls asked;
    CallOrder order;
  };
  // Beside what is held of a peer.
  bool hasRoom(std::uint64_t held, std::uint64_t bytes) const;
  void serve(const Asker& asker, IncomingMessage& in, const CallContext& call);
  // Loop thread. False: it is no quick call, or one that tools are to see.
  bool servesHere(worker_id_t from, IncomingMessage& in);
  void serveOwn(const Asker& asker, const FuturePtr& made, const CallContext& call);
  // Does not run a request whose caller has given up: the caller's own timeout has ended the call,
  // so it gets no answer.
  void drop(const Asker& asker, std::span<const char> payload);
  // Loop thread: drops a request that has not begun at once, because its turn may be far off.
  void dropWaiting(const std::shared_ptr<CallContext>& context);
  // Answers with the refusal. `payload`: as far as it is known, for the RRefs in it.
  void refuse(worker_id_t from, std::uint64_t id, std::span<const char> payload,
              const std::string& why);
  // `take` makes the request's message under the call's streams.
  void runCallback(Asker asker, const std::function<MessagePtr()>& take);
  // To the flight record and the profiler, if they listen.
  void show(Asker& asker, const Message& request, std::optional<at::RecordFunction>& range) const;
  void respond(const Asker& asker, JitFuture& result, const std::vector<c10::Stream>& streams);
  void respondFailure(worker_id_t to, std::uint64_t id, const std::string& text);
  void sendResponse(worker_id_t to, std::uint64_t id, const MessagePtr& message);

  AgentContext& context_;
  MessageSender& sender_;
  Group& group_;
  RRefService& rrefs_;
  RequestClient& client_;
  const std::unique_ptr<RequestCallback> callback_;
  RRefDecliner decliner_;
  // The map is the loop thread's; no entry is ever erased, so that a request may hold on to it.
  std::unordered_map<worker_id_t, Peer> peers_;
  CallOrder own_order_;
  std::atomic<std::uint64_t> refused_by_policy_{0};
  std::mutex own_mutex_;  // guards the one below
  AskedCalls own_;        // this worker's requests to itself
};

}  // namespace weft::rpc
