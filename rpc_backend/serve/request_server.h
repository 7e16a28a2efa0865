// RequestServer: the requests that other workers, and this one, make here: which are admitted, and
// which run. RequestRunner runs them, and Responder answers.
//
// Threads: the on...() members, admits() and hold() run on the loop thread, which reads no payload
// of a request; requests run on workers, but for quick and native calls (quick_call.h).
// Failure: a request whose caller has given up, or whose deadline has passed, before it begins is
// not run.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "rpc_backend/inflight/asked_calls.h"
#include "rpc_backend/serve/request_runner.h"
#include "rpc_backend/serve/responder.h"

namespace weft::rpc {

class RequestServer {
 public:
  RequestServer(AgentContext& context, MessageSender& sender, Group& group, RRefService& rrefs,
                RequestClient& client, std::unique_ptr<RequestCallback> callback)
      : context_(context),
        group_(group),
        rrefs_(rrefs),
        responder_(context, sender, group, rrefs, client),
        runner_(context, group, responder_, std::move(callback)) {}

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
  std::uint64_t refusedByPolicy() const { return responder_.refusedByPolicy(); }

 private:
  struct Peer {
    std::atomic<std::uint64_t> held{0};  // bytes of what it asked for and waits or runs here
    AskedCalls asked;
    CallOrder order;
  };
  // Beside what is held of a peer.
  bool hasRoom(std::uint64_t held, std::uint64_t bytes) const;
  void serve(const Asker& asker, IncomingMessage& in, const CallContext& call);
  // What is neither refused nor dropped.
  void runRequest(Asker asker, IncomingMessage& in);
  // Completer.
  void serveNative(const Asker& asker, IncomingMessage& in, const CallContext& call);
  // Loop thread. False: it is no quick call, or one that tools are to see, or comes before start().
  bool servesHere(worker_id_t from, IncomingMessage& in);
  // Answers a quick or native call, which `run` runs; it came at `seen`.
  void serveDirectly(worker_id_t from, RRefLifecycle::Seen seen, IncomingMessage& in,
                     MessagePtr (*run)(const Message&));
  void serveOwn(const Asker& asker, const FuturePtr& made, const CallContext& call);
  // Loop thread: drops a request that has not begun at once, because its turn may be far off.
  void dropWaiting(const std::shared_ptr<CallContext>& context);

  AgentContext& context_;
  Group& group_;
  RRefService& rrefs_;
  Responder responder_;
  RequestRunner runner_;
  // The map is the loop thread's; no entry is ever erased, so that a request may hold on to it.
  std::unordered_map<worker_id_t, Peer> peers_;
  std::mutex own_mutex_;  // guards the one below
  AskedCalls own_;        // this worker's requests to itself
};

}  // namespace weft::rpc
