#include "rpc_backend/serve/callback/peer_contexts.h"

#include "rpc_backend/torch_private/autograd_contexts.h"

namespace weft::rpc {

bool PeerContexts::beganHere(std::int64_t context) const {
  return autograd_contexts::creatorOf(context) == context_.rank;
}

void PeerContexts::onUsed(worker_id_t from, std::int64_t context) {
  if (autograd_contexts::creatorOf(context) == from || beganHere(context)) return;
  const std::lock_guard lock(mutex_);
  brought_[from].insert(context);
}

bool PeerContexts::mayEnd(worker_id_t from, std::int64_t context) {
  if (autograd_contexts::creatorOf(context) == from) return true;
  const std::lock_guard lock(mutex_);
  const auto found = brought_.find(from);
  return found != brought_.end() && found->second.erase(context) > 0;
}

std::shared_ptr<void> PeerContexts::takeGradients(std::int64_t context, std::int64_t message) {
  const std::pair key(context, message);
  const std::lock_guard lock(mutex_);
  if (!taking_gradients_.insert(key).second) return nullptr;
  return {this, [key, alive = context_.keepAlive()](PeerContexts* self) {
            const std::lock_guard own(self->mutex_);
            self->taking_gradients_.erase(key);
          }};
}

void PeerContexts::onPeerLost(worker_id_t peer) {
  const std::lock_guard lock(mutex_);
  brought_.erase(peer);
}

}  // namespace weft::rpc
