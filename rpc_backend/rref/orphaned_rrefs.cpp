#include "rpc_backend/rref/orphaned_rrefs.h"

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include "rpc_backend/core/request_policy.h"
#include "rpc_backend/rref/torch_rrefs.h"

namespace weft::rpc {

void OrphanedRRefs::onPeerLost(Rank peer) {
  {
    const std::lock_guard lock(mutex_);
    ids_at_loss_[peer] = torch_rrefs::idsMade();
  }
  any_loss_.store(true, std::memory_order_release);
}

void OrphanedRRefs::collect(Rank owner) {
  if (!RpcAgent::isCurrentRpcAgentSet()) return;
  for (const torch_rrefs::User& user : torch_rrefs::users()) {
    if (user.rref->owner() != owner) continue;
    const RRefKey value = fromTorch(user.rref->rrefId());
    // A value with a number of this worker may be of the new life already; contains() can tell.
    if (value.created_on == self_) continue;
    const std::lock_guard lock(mutex_);
    orphans_.insert(value);
  }
}

bool OrphanedRRefs::contains(const RRefKey& value, Rank owner) const {
  const std::lock_guard lock(mutex_);
  const auto lost = ids_at_loss_.find(owner);
  if (lost == ids_at_loss_.end()) return false;
  if (value.created_on == self_) return value.local_id < lost->second;
  return orphans_.contains(value);
}

std::optional<RRefKey> OrphanedRRefs::findIn(const Message& message, Rank to) const {
  if (!any_loss_.load(std::memory_order_acquire)) return std::nullopt;
  const auto [type, payload, recognised] = innermost(message.type(), message.payload());
  std::optional<RRefKey> value;
  if (type == MessageType::SCRIPT_RREF_FETCH_CALL || type == MessageType::PYTHON_RREF_FETCH_CALL) {
    value = readFetchedId(payload);
  } else if (type == MessageType::RREF_USER_DELETE || type == MessageType::RREF_FORK_REQUEST) {
    if (const auto ids = readForkIds(payload)) value = ids->value;
  }
  return value && contains(*value, to) ? value : std::nullopt;
}

std::optional<PickledRRef> OrphanedRRefs::findAmong(const std::vector<PickledRRef>& carried) const {
  if (!any_loss_.load(std::memory_order_acquire)) return std::nullopt;
  for (const PickledRRef& rref : carried) {
    if (rref.owner != self_ && contains(rref.ids.value, rref.owner)) return rref;
  }
  return std::nullopt;
}

}  // namespace weft::rpc
