#include "rpc_backend/rref/rref_table.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace weft::rpc {

namespace {
// How many ended forks are remembered. A message is sent again for some seconds only, and the
// connections do not carry so many deletions in that time.
constexpr std::size_t kMaxDead = std::size_t{1} << 17U;
// Claims of one fork are between these.
constexpr Rank kLowest = std::numeric_limits<Rank>::min();
constexpr Rank kHighest = std::numeric_limits<Rank>::max();
}  // namespace

bool RRefTable::ofLostLife(Rank peer, LossCount losses_then) const {
  const auto found = lost_at_.find(peer);
  return found != lost_at_.end() && losses_then < found->second;
}

bool RRefTable::isOfLostLife(Rank peer, LossCount losses_then) const {
  if (losses_then == lossCount()) return false;  // nobody was lost since
  const std::lock_guard lock(mutex_);
  return ofLostLife(peer, losses_then);
}

bool RRefTable::isDead(const Claim& claim) const {
  const auto found = dead_.find(claim);
  // Those of its creator's former life do not count: its next life may make the same id.
  return found != dead_.end() && !ofLostLife(claim.fork.created_on, found->second);
}

void RRefTable::markDead(const Claim& claim) {
  if (dead_.insert_or_assign(claim, losses_.load()).second) dead_order_.push_back(claim);
  if (dead_order_.size() > kMaxDead) {
    dead_.erase(dead_order_.front());
    dead_order_.pop_front();
  }
}

bool RRefTable::isClaimed(const ForkIds& ids) const {
  const auto end = forks_.upper_bound({ids.fork, kHighest});
  return std::any_of(forks_.lower_bound({ids.fork, kLowest}), end,
                     [&](const auto& claim) { return claim.second.value == ids.value; });
}

ForkTable::Dropped RRefTable::removeUnclaimed(const ForkIds& ids) {
  return isClaimed(ids) ? nullptr : table_.removeFork(ids);
}

ForkTable::Dropped RRefTable::removeAnyway(const ForkIds& ids) {
  const auto end = forks_.upper_bound({ids.fork, kHighest});
  for (auto next = forks_.lower_bound({ids.fork, kLowest}); next != end;) {
    const auto claim = next++;
    if (claim->second.value == ids.value) forks_.erase(claim);
  }
  return table_.removeFork(ids);
}

// The same claim to another value is of a former life: its fork ends here.
ForkTable::Dropped RRefTable::put(const Claim& claim, const Entry& entry) {
  const auto [place, is_new] = forks_.try_emplace(claim, entry);
  if (is_new) return nullptr;
  const ForkIds former{place->second.value, claim.fork};
  place->second = entry;
  return removeUnclaimed(former);
}

void RRefTable::onForkRequest(const ForkIds& ids, Rank holder, LossCount losses_then) {
  ForkTable::Dropped dropped;
  const std::lock_guard lock(mutex_);
  const Claim claim{ids.fork, holder};
  const auto known = forks_.find(claim);
  const bool repeated = known != forks_.end() && !ofLostLife(holder, known->second.losses_then);
  if (repeated || isDead(claim) || ofLostLife(holder, losses_then)) {
    ++counts_.repeats;
    return;
  }
  // One that is claimed torch has, or the call that claims it is about to add it.
  const bool is_new = !isClaimed(ids);
  dropped = put(claim, {ids.value, losses_then, Clock::now(), true});
  if (is_new) table_.addFork(ids);
}

void RRefTable::onRemoteCall(const ForkIds& ids, Rank holder, LossCount losses_then) {
  if (ids.value == ids.fork) return;  // a call to itself: torch ends that fork when it is done
  ForkTable::Dropped dropped;
  ForkTable::Dropped former;
  const std::lock_guard lock(mutex_);
  dropped = removeAnyway(ids);
  const Claim claim{ids.fork, holder};
  if (!isDead(claim) && !ofLostLife(holder, losses_then))
    former = put(claim, {ids.value, losses_then, Clock::now(), true});
}

void RRefTable::onRemoteResult(const ForkIds& ids, Rank holder, LossCount losses_then) {
  if (ids.value == ids.fork) return;  // a call to itself, as above
  ForkTable::Dropped dropped;
  const std::lock_guard lock(mutex_);
  const Claim claim{ids.fork, holder};
  if (isDead(claim)) {
    ++counts_.repeats;
    dropped = removeUnclaimed(ids);
  } else if (ofLostLife(holder, losses_then)) {
    counts_.released += forks_.erase(claim);  // if releaseForks() was not there yet
    dropped = removeUnclaimed(ids);
  } else {
    dropped = put(claim, {ids.value, losses_then, Clock::now(), false});
  }
}

void RRefTable::onRemoteFailure(const ForkIds& ids) {
  ForkTable::Dropped dropped;
  const std::lock_guard lock(mutex_);
  dropped = removeAnyway(ids);
}

void RRefTable::onUserDelete(const ForkIds& ids, Rank holder) {
  ForkTable::Dropped dropped;
  const std::lock_guard lock(mutex_);
  const Claim claim{ids.fork, holder};
  const auto found = forks_.find(claim);
  // One of another value is another fork: its holder's loss must still release it.
  const bool known = found != forks_.end() && found->second.value == ids.value;
  if (!known || found->second.may_repeat) {
    if (isDead(claim)) ++counts_.repeats;
    markDead(claim);
  }
  if (!known) return;
  forks_.erase(found);
  dropped = removeUnclaimed(ids);
}

void RRefTable::onChildAccept(const RRefKey& fork, Rank holder) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = children_.find(fork);
    if (found == children_.end() || found->second.to != holder) {
      ++counts_.repeats;
      return;
    }
    children_.erase(found);
  }
  table_.childSettled(fork);
}

void RRefTable::beforeSend(const PickledRRef& rref, Rank to) {
  if (to == self_) return;  // torch settles these without a message
  ForkTable::Dropped dropped;
  const std::lock_guard lock(mutex_);
  if (rref.owner == self_) {
    dropped = put({rref.ids.fork, to}, {rref.ids.value, losses_.load(), Clock::now(), false});
  } else {
    children_[rref.ids.fork] = {to, losses_.load()};
  }
}

void RRefTable::undoSend(const PickledRRef& rref) {
  ForkTable::Dropped dropped;
  {
    const std::lock_guard lock(mutex_);
    if (rref.owner == self_) {
      if (isClaimed(rref.ids)) dropped = removeAnyway(rref.ids);
      return;
    }
    if (children_.erase(rref.ids.fork) == 0) return;
  }
  table_.childSettled(rref.ids.fork);
}

void RRefTable::lose(Rank peer) {
  const std::lock_guard lock(mutex_);
  lost_at_[peer] = losses_.fetch_add(1, std::memory_order_acq_rel) + 1;
}

std::size_t RRefTable::releaseForks(Rank peer) {
  std::vector<ForkTable::Dropped> dropped;
  std::vector<RRefKey> settled;
  std::size_t released = 0;
  {
    const std::lock_guard lock(mutex_);
    for (auto entry = forks_.begin(); entry != forks_.end();) {
      const auto claim = entry++;
      if (claim->first.holder != peer || !ofLostLife(peer, claim->second.losses_then)) continue;
      const ForkIds ids{claim->second.value, claim->first.fork};
      forks_.erase(claim);
      if (auto value = removeUnclaimed(ids)) dropped.push_back(std::move(value));
      ++released;
    }
    std::erase_if(children_, [&](const auto& child) {
      if (child.second.to != peer || !ofLostLife(peer, child.second.losses_then)) return false;
      settled.push_back(child.first);
      return true;
    });
    counts_.released += released;
  }
  for (const RRefKey& fork : settled)
    table_.childSettled(fork);
  return released;
}

void RRefTable::onUserSeen(const RRefKey& fork) {
  const std::lock_guard lock(mutex_);
  users_.try_emplace(fork, Clock::now());
}

void RRefTable::onUserGone(const RRefKey& fork) {
  const std::lock_guard lock(mutex_);
  users_.erase(fork);
}

std::vector<RRefTable::Holding> RRefTable::holdings() const {
  const std::lock_guard lock(mutex_);
  std::vector<Holding> all;
  all.reserve(forks_.size());
  for (const auto& [claim, entry] : forks_)
    all.push_back({{entry.value, claim.fork}, claim.holder, entry.since});
  return all;
}

std::unordered_map<RRefKey, RRefTable::Clock::time_point, RRefKeyHash> RRefTable::usersSince()
    const {
  const std::lock_guard lock(mutex_);
  return users_;
}

RRefTable::Counts RRefTable::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace weft::rpc
