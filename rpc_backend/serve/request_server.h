// RequestServer: takes the requests that other workers, and this one, send here, and decides which
// of them run. RequestRunner runs them, Responder answers them.
//
// Threads: the on...() members, admits() and hold() run on the loop thread, which reads no payload
// of a request. Requests run on workers, except quick calls (quick_call.h) and deletions of RRefs,
// which take no longer than to wake a worker.
// Failure: a request does not run if its caller gave up, or its deadline passed, before it begins.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "rpc_backend/serve/callback/peer_contexts.h"
#include "rpc_backend/serve/request_index.h"
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
        client_(client),
        responder_(context, sender, group, rrefs, client),
        runner_(context, group, responder_, std::move(callback)) {}

  // Whether there is room for a request of `bytes` in all (max_inflight_bytes). If not, this
  // answers it with the refusal.
  bool admits(worker_id_t from, const WireHeader& head, std::uint64_t bytes);
  // Counts so many more bytes for a peer, for work that is no request, until the result is dropped.
  // Null: they would exceed the limit.
  std::shared_ptr<void> hold(worker_id_t from, std::uint64_t bytes);
  // Answers a request that has not been read with the refusal.
  void refuse(worker_id_t from, const WireHeader& head, const std::string& why);
  void onRequest(worker_id_t from, std::shared_ptr<IncomingMessage> in);
  // The caller has given up its request, which does not run if it has not begun.
  void onCancel(worker_id_t from, std::uint64_t id);
  // As if the peer had given up all its requests.
  void onPeerLost(worker_id_t peer);
  // Any thread: a request of this worker to itself. `request` holds the message, and was completed
  // on the streams that made it.
  void onOwnRequest(std::uint64_t id, FuturePtr request, Clock::time_point deadline);
  // Any thread: as onCancel().
  void onCancelOwn(std::uint64_t id);
  PeerContexts& contexts() noexcept { return contexts_; }

 private:
  struct Peer {
    std::atomic<std::uint64_t> held{0};  // bytes of its requests that wait or run here
    RequestIndex<InflightRequest> requests;
    CallOrder order;
  };
  // Whether `bytes` more fit beside the `held` bytes of a peer.
  bool hasRoom(std::uint64_t held, std::uint64_t bytes) const;
  using Request = std::shared_ptr<InflightRequest>;
  void serve(IncomingMessage& in, const Request& request);
  // Runs what is neither refused nor dropped. The request counts until it is answered.
  void runRequest(IncomingMessage& in, const Request& request);
  // Whether the loop thread serves it: a quick call that no tool wants to see, or the deletion of
  // an RRef. Not before start().
  bool isQuick(const IncomingMessage& in) const;
  // Loop thread: serves it at once. False: it is not quick.
  bool serveIfQuick(worker_id_t from, IncomingMessage& in);
  // Any thread. Throws if it is malformed.
  void serveRRefMessage(worker_id_t from, const IncomingMessage& in,
                        RRefLifecycle::LossCount losses_then);
  void serveOwn(const RequestSource& source, const FuturePtr& made, const CallContext& call);
  // Loop thread: drops a request now if it has not begun, because its turn may be far off.
  void dropWaiting(Request request);

  AgentContext& context_;
  Group& group_;
  RRefService& rrefs_;
  RequestClient& client_;
  Responder responder_;
  RequestRunner runner_;
  PeerContexts contexts_{context_};
  // Only the loop thread uses the map. No entry is ever erased, so that requests can refer to it.
  std::unordered_map<worker_id_t, Peer> peers_;
  std::mutex own_mutex_;                    // guards own_requests_
  RequestIndex<CallContext> own_requests_;  // this worker's requests to itself
};

}  // namespace weft::rpc
