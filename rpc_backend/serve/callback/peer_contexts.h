// PeerContexts: which contexts of distributed autograd peers have brought here, and the gradients
// that are being taken for them.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "rpc_backend/threads/agent_context.h"

namespace weft::rpc {

class PeerContexts {
 public:
  explicit PeerContexts(AgentContext& context) : context_(context) {}

  // Whether this worker began that context.
  bool beganHere(std::int64_t context) const;
  // A request of `from` is part of that context.
  void onUsed(worker_id_t from, std::int64_t context);
  // Whether `from` may end it here: who began it, or who brought it here. Others, whom torch tells
  // to tell this worker, do so in vain. It is asked once for each end.
  bool mayEnd(worker_id_t from, std::int64_t context);
  // Gradients for what a call brought here, by the ids of its context and of its message, are about
  // to be taken, until the result goes. Null: others for it are being taken.
  std::shared_ptr<void> takeGradients(std::int64_t context, std::int64_t message);
  void onPeerLost(worker_id_t peer);

 private:
  AgentContext& context_;
  std::mutex mutex_;  // guards what follows
  // The contexts of other workers that each peer has brought here.
  std::unordered_map<worker_id_t, std::unordered_set<std::int64_t>> brought_;
  std::set<std::pair<std::int64_t, std::int64_t>> taking_gradients_;
};

}  // namespace weft::rpc
