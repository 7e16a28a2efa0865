#include "rpc_backend/rref/orphaned_rrefs.h"

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include "rpc_backend/core/call_kind.h"
#include "rpc_backend/core/innermost.h"
#include "rpc_backend/torch_private/torch_ids.h"

namespace weft::rpc {

std::vector<torch_rrefs::User> OrphanedRRefs::onPeerLost(Rank peer) {
  std::vector<torch_rrefs::User> users;
  if (RpcAgent::isCurrentRpcAgentSet()) users = torch_rrefs::users();
  {
    const std::lock_guard lock(mutex_);
    ids_at_loss_[peer] = torch_rrefs::idsMade();
    std::erase_if(sent_later_, [peer](const auto& sent) { return sent.second == peer; });
    for (const torch_rrefs::User& user : users) {
      if (user.rref->owner() != peer) continue;
      // contains() knows those with a number of this worker.
      const RRefKey value = fromTorch(user.rref->rrefId());
      if (value.created_on != self_) orphans_.insert(value);
    }
  }
  any_loss_.store(true, std::memory_order_release);
  return users;
}

void OrphanedRRefs::onTransmit(const Message& message, Rank to) {
  if (!any_loss_.load(std::memory_order_acquire)) return;
  const auto [type, payload, recognised] = innermost(message.type(), message.payload());
  if (!createsRRef(type)) return;
  const auto created = readCreatedIds(payload);
  if (!created || !contains(created->value, to)) return;
  const std::lock_guard lock(mutex_);
  sent_later_.emplace(created->value, to);
}

bool OrphanedRRefs::contains(const RRefKey& value, Rank owner) const {
  const std::lock_guard lock(mutex_);
  const auto lost = ids_at_loss_.find(owner);
  if (lost == ids_at_loss_.end()) return false;
  if (value.created_on == self_)
    return value.local_id < lost->second && !sent_later_.contains(value);
  return orphans_.contains(value);
}

std::optional<RRefKey> OrphanedRRefs::findIn(const Message& message, Rank to) const {
  if (!any_loss_.load(std::memory_order_acquire)) return std::nullopt;
  const auto [type, payload, recognised] = innermost(message.type(), message.payload());
  std::optional<RRefKey> value;
  if (isFetch(type)) {
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
