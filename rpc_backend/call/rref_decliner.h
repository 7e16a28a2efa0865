// RRefDecliner: tells a worker that nobody here has the RRefs in a message of it which torch did
// not get: a request that does not run, an answer that is refused or comes too late. Without that
// the worker's shutdown waits 100 s for them.
//
// Threads: any. decline() reads the whole payload, which takes long for a large one: on the loop
// thread, decline only a payload that is in its header.
// Failure: a worker that leaves kMostUnacknowledged messages about its RRefs unacknowledged is cut
// off; each takes memory here until its answer.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

#include "rpc_backend/codec/message_sender.h"
#include "rpc_backend/group/group.h"
#include "rpc_backend/rref/rref_service.h"

namespace weft::rpc {

class RequestClient;

class RRefDecliner {
 public:
  static constexpr std::size_t kMostUnacknowledged = std::size_t{1} << 16;

  // All live as long as this. `client` sends the messages.
  RRefDecliner(AgentContext& context, MessageSender& sender, Group& group, RRefService& rrefs,
               RequestClient& client)
      : context_(context), sender_(sender), group_(group), rrefs_(rrefs), client_(client) {}

  void decline(worker_id_t from, std::span<const char> payload);
  // The same on a dropper. Does nothing without memory for that.
  void declineLater(worker_id_t from, std::shared_ptr<IncomingMessage> in);

 private:
  // Counts one more message until the result is dropped. Null: there are too many.
  std::shared_ptr<void> count(worker_id_t to);

  AgentContext& context_;
  MessageSender& sender_;
  Group& group_;
  RRefService& rrefs_;
  RequestClient& client_;
  std::mutex mutex_;                                             // guards the one below
  std::unordered_map<worker_id_t, std::size_t> unacknowledged_;  // only where there are some
};

}  // namespace weft::rpc
