// RRefDecliner: tells a worker that nobody here has the RRefs in a request of it that did not run.
// Without that the worker's shutdown waits 100 s for them.
//
// Threads: any. It reads the whole payload, which takes long for a large one: on the loop thread
// only a payload that is in its header.
// Failure: a worker that leaves kMostUnanswered of these messages unacknowledged is cut off; each
// takes memory here until its answer.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

#include "rpc_backend/call/request_client.h"

namespace weft::rpc {

class RRefDecliner {
 public:
  static constexpr std::size_t kMostUnanswered = std::size_t{1} << 16;

  RRefDecliner(AgentContext& context, MessageSender& sender, Group& group, RRefService& rrefs,
               RequestClient& client)
      : context_(context), sender_(sender), group_(group), rrefs_(rrefs), client_(client) {}

  void decline(worker_id_t from, std::span<const char> payload);

 private:
  // Counts one more message until it is dropped. Null: there are too many.
  std::shared_ptr<void> count(worker_id_t to);

  AgentContext& context_;
  MessageSender& sender_;
  Group& group_;
  RRefService& rrefs_;
  RequestClient& client_;
  std::mutex mutex_;                                         // guards the one below
  std::unordered_map<worker_id_t, std::size_t> unanswered_;  // only where there are some
};

}  // namespace weft::rpc
