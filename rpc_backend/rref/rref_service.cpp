#include "rpc_backend/rref/rref_service.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "rpc_backend/core/log.h"
#include "rpc_backend/torch_private/autograd_contexts.h"
#include "rpc_backend/torch_private/torch_ids.h"
#include "transport/base/parse_number.h"
#include "transport/base/peer_name.h"

namespace weft::rpc {

namespace {

// A lost peer's forks are released only after this time. The peer may have passed an RRef on just
// before: the child's request to the owner is under way then, and must find the value.
constexpr milliseconds kReleaseGrace{1000};
constexpr std::size_t kMaxLeakLines = 10;
constexpr std::optional kAllIds = std::numeric_limits<std::int64_t>::max();

std::string namesOf(std::vector<Rank> ranks, const Directory& directory) {
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string names;
  for (const Rank rank : ranks) {
    const std::string name = directory.nameOf(static_cast<worker_id_t>(rank));
    names += (names.empty() ? "'" : ", '") + name + "'";
  }
  return names;
}

}  // namespace

bool RRefService::isMoot(worker_id_t to, MessageType type) const {
  if (!RRefLifecycle::isRRefMessage(type) || to == context_.rank) return false;
  // A fork request to a lost owner counts too: using the reference then fails with its name.
  if (group_.lossOf(to) || !group_.directory().contains(to)) return true;
  return !context_.torchRuns() && type != MessageType::RREF_FORK_REQUEST;
}

RRefService::Outgoing RRefService::beforeSend(const Message& message, worker_id_t to) {
  if (const auto orphan = orphans_.findIn(message, to)) return {{}, orphanText(*orphan, to)};
  Outgoing out{lifecycle_.beforeSend(message, to), {}};
  const auto orphan = orphans_.findAmong(out.carried);
  if (!orphan) return out;
  const auto owner = static_cast<worker_id_t>(orphan->owner);
  if (group_.lossOf(owner)) return out;
  lifecycle_.undo(out.carried);
  return {{}, orphanText(orphan->ids.value, owner)};
}

std::string RRefService::orphanText(const RRefKey& value, worker_id_t owner) const {
  if (const auto loss = group_.lossOf(owner)) return *loss;
  const auto reason = group_.losses().lastReason(owner);
  if (const auto outage = group_.losses().lastOutage(owner)) {
    return group_.describe(owner) + " was lost for " + transport::seconds(*outage) +
           "; what it owned for this worker was released, with the value of the RRef " +
           toString(value) + (reason ? ": " + *reason : "");
  }
  return group_.describe(owner) + " was started again, and the RRef " + toString(value) +
         " refers to a value of its former process, which is lost" + (reason ? ": " + *reason : "");
}

void RRefService::onPeerLost(worker_id_t peer) {
  lifecycle_.onPeerLost(peer);
  {
    // A successor's numbers begin elsewhere.
    const std::lock_guard lock(mutex_);
    first_ids_.erase(peer);
  }
  // Now, because messages after the peer's return are not of its former life.
  context_.dropElsewhere(orphans_.onPeerLost(peer));
}

void RRefService::cleanUpAfter(worker_id_t peer) {
  context_.completers.run([this, alive = context_.keepAlive(), peer] {
    auto contexts = autograd_contexts::begunBy(peer);
    // If the peer is back by now, some of the contexts may be its new life's.
    if (!group_.lossOf(peer)) contexts.clear();
    {
      const std::lock_guard lock(mutex_);
      const auto [scheduled, first] = cleaning_up_.try_emplace(peer);
      scheduled->second.insert(scheduled->second.end(), contexts.begin(), contexts.end());
      if (!first) return;
    }
    const auto half = fromSeconds(context_.options.peer_timeout / 2);
    sender_.runOnCompleterAfter(std::min(kReleaseGrace, half),
                                [this, alive, peer] { cleanUp(peer); });
  });
}

void RRefService::cleanUp(worker_id_t peer) {
  std::vector<std::int64_t> contexts;
  {
    const std::lock_guard lock(mutex_);
    contexts = std::move(cleaning_up_.extract(peer).mapped());
  }
  lifecycle_.releaseForks(peer);
  const bool back = !group_.lossOf(peer).has_value();
  lifecycle_.settleUsersOf(peer, back ? &orphans_ : nullptr);
  // It may go on with them after an outage; nobody does after its death. Calls that it had sent may
  // have made some meanwhile.
  if (!back) {
    autograd_contexts::release(autograd_contexts::begunBy(peer));
  } else if (!group_.losses().lastOutage(peer)) {
    autograd_contexts::release(contexts);
  }
  // One that is back says itself what does not come, perhaps before its references went above.
  const auto first = back ? firstIdOf(peer) : kAllIds;
  if (first) failAwaitedOf(peer, *first);
}

std::optional<std::int64_t> RRefService::firstIdOf(worker_id_t peer) {
  const std::lock_guard lock(mutex_);
  const auto known = first_ids_.find(peer);
  return known == first_ids_.end() ? std::nullopt : std::optional(known->second);
}

void RRefService::failAwaitedOf(worker_id_t creator, std::int64_t first) {
  if (!RpcAgent::isCurrentRpcAgentSet()) return;
  const auto reason = group_.losses().lastReason(creator);
  const std::string text =
      context_.me() + " does not have the value of this RRef: " + group_.describe(creator) +
      " was lost before it had created the value" + (reason ? ": " + *reason : "");
  const auto lost = [&](const RRefKey& value) {
    return value.created_on == creator && value.local_id < first;
  };
  torch_rrefs::failAwaited(lost, std::make_exception_ptr(std::runtime_error(text)));
  lifecycle_.failEarly(lost, text);
}

void RRefService::failUnfinished() {
  lifecycle_.failEarly([](const RRefKey& /*value*/) { return true; },
                       context_.me() +
                           " shuts down, and the call that was to create the value of "
                           "this RRef has not ended");
}

void RRefService::onPeerReturned(worker_id_t peer) {
  const auto error = sender_.sendControl(peer, WireKind::kControl, ControlType::kCreationsLost, 0,
                                         std::to_string(torch_rrefs::idsMade()));
  if (error)
    logDebug("a worker that is back was not told what it must not wait for: " + error.text());
}

void RRefService::onCreationsLost(worker_id_t peer, const std::string& text) {
  const auto first = transport::parseNumber<std::int64_t>(text);
  if (!first)
    return logWarning(group_.describe(peer) + " sent a malformed message about lost RRefs");
  {
    const std::lock_guard lock(mutex_);
    first_ids_[peer] = *first;
    if (!failing_.insert(peer).second) return;
  }
  context_.completers.run([this, alive = context_.keepAlive(), peer] {
    {
      const std::lock_guard lock(mutex_);
      failing_.erase(peer);
    }
    if (const auto known = firstIdOf(peer)) failAwaitedOf(peer, *known);
  });
}

void RRefService::onFetch(const RRefKey& value) {
  if (!torch_rrefs::isAwaited(value)) return;
  lifecycle_.onFetch(value);
  failIfLost(value);
}

void RRefService::onOwnWait(const RRefKey& value) {
  lifecycle_.onAwaited(value);
  if (torch_rrefs::findEmpty(value)) failIfLost(value);
}

void RRefService::failIfLost(const RRefKey& value) {
  const auto creator = static_cast<worker_id_t>(value.created_on);
  if (creator == context_.rank) return;
  if (group_.lossOf(creator)) return cleanUpAfter(creator);
  const auto first = firstIdOf(creator);
  if (first && value.local_id < *first) failAwaitedOf(creator, *first);
}

void RRefService::warnAboutLeaks(bool ignored) const {
  if (ignored && !transport::logEnabled(LogLevel::kInfo)) return;
  std::size_t leaked = 0;
  for (const RRefRow& row : lifecycle_.report()) {
    if (!row.owned || row.holders.empty() || ++leaked > kMaxLeakLines) continue;
    logWarning(context_.me() + " leaks a value of type " + row.type + " (" + toString(row.id) +
               ", " + std::to_string(row.bytes.value_or(0)) +
               " bytes of tensors): it is still referred to by " +
               namesOf(row.holders, group_.directory()));
  }
  if (leaked > kMaxLeakLines) {
    logWarning(context_.me() + " leaks " + std::to_string(leaked - kMaxLeakLines) + " more values");
  }
}

}  // namespace weft::rpc
