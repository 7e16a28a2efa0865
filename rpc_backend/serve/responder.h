// Responder: answers a request with its result, an error, or a refusal. If the request does not
// run, it also tells the caller that nobody here has the RRefs in it (RRefDecliner).
//
// Threads: any. On the loop thread, refuse only what has its payload in its header, and answer no
// request of this worker's own.
// Failure: a result that can't be sent (a device without a map, say) becomes an error; an error
// that can't be sent is logged.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rpc_backend/call/request_client.h"
#include "rpc_backend/serve/inflight_request.h"

namespace weft::rpc {

class Responder {
 public:
  Responder(AgentContext& context, MessageSender& sender, Group& group, RRefService& rrefs,
            RequestClient& client)
      : context_(context), sender_(sender), group_(group), rrefs_(rrefs), client_(client) {}

  // Answers with a complete `result`, which was made on `streams`.
  void respond(const RunningRequest& running, JitFuture& result,
               const std::vector<c10::Stream>& streams);
  // Throws c10::Error when the message can't be encoded.
  void send(worker_id_t to, std::uint64_t id, const MessagePtr& message);
  void fail(worker_id_t to, std::uint64_t id, const std::string& text);
  // `payload`: as far as it was read; it may hold RRefs.
  void refuse(worker_id_t from, std::uint64_t id, std::span<const char> payload,
              const std::string& why);
  void refuseByPolicy(worker_id_t from, std::uint64_t id, std::span<const char> payload,
                      const std::string& why);
  // A request does not run because its caller gave up. The caller has ended the call, so it gets no
  // answer.
  void drop(worker_id_t from, std::span<const char> payload);

  // The order of this worker's requests to itself.
  CallOrder& ownOrder() noexcept { return own_order_; }

 private:
  MessagePtr failure(const std::string& text, std::uint64_t id) const;
  // A text about lost workers, for an error about a missing graph of distributed autograd: the loss
  // of the worker whose context it was in released it. torch's error has only a number, so the text
  // names all workers that it may have been.
  std::string lostMakers() const;

  AgentContext& context_;
  MessageSender& sender_;
  Group& group_;
  RRefService& rrefs_;
  RequestClient& client_;
  CallOrder own_order_;
};

}  // namespace weft::rpc
