#include "rpc_backend/rref/rref_table.h"

#include <utility>

namespace weft::rpc {

namespace {
// How many ended forks are remembered. A message is sent again for some seconds only, and the
// connections do not carry so many deletions in that time.
constexpr std::size_t kMaxDead = std::size_t{1} << 17U;
}  // namespace

bool RRefTable::ofLostLife(Rank peer, Seen seen) const {
  const auto found = lost_at_.find(peer);
  return found != lost_at_.end() && seen < found->second;
}

bool RRefTable::isOfLostLife(Rank peer, Seen seen) const {
  if (seen == now()) return false;  // nobody was lost since
  const std::lock_guard lock(mutex_);
  return ofLostLife(peer, seen);
}

bool RRefTable::isDead(const RRefKey& fork) const {
  const auto found = dead_.find(fork);
  // A worker that came back counts its ids from 0 again; ids of its former life do not count.
  return found != dead_.end() && !ofLostLife(fork.created_on, found->second);
}

void RRefTable::markDead(const RRefKey& fork) {
  if (dead_.insert_or_assign(fork, losses_.load()).second) dead_order_.push_back(fork);
  if (dead_order_.size() > kMaxDead) {
    dead_.erase(dead_order_.front());
    dead_order_.pop_front();
  }
}

// An entry of the same id for another value is of a former life: its fork ends here. Returns what
// is to be dropped without the lock.
ForkTable::Dropped RRefTable::put(const ForkIds& ids, const Entry& entry) {
  ForkTable::Dropped dropped;
  const auto [place, is_new] = forks_.try_emplace(ids.fork, entry);
  if (!is_new && place->second.value != ids.value)
    dropped = table_.removeFork({place->second.value, ids.fork});
  place->second = entry;
  return dropped;
}

void RRefTable::onForkRequest(const ForkIds& ids, Rank holder, Seen seen) {
  ForkTable::Dropped dropped;
  const std::lock_guard lock(mutex_);
  const auto known = forks_.find(ids.fork);
  const bool repeated =
      known != forks_.end() && !ofLostLife(known->second.holder, known->second.seen);
  if (repeated || isDead(ids.fork) || ofLostLife(holder, seen)) {
    ++counts_.repeats;
    return;
  }
  dropped = put(ids, {ids.value, holder, seen, Clock::now(), true});
  table_.addFork(ids);
}

void RRefTable::onRemoteResult(const ForkIds& ids, Rank holder, Seen seen) {
  if (ids.value == ids.fork) return;  // a call to itself: torch ends that fork when it is done
  ForkTable::Dropped dropped;
  const std::lock_guard lock(mutex_);
  if (isDead(ids.fork)) {
    ++counts_.repeats;
    dropped = table_.removeFork(ids);
  } else if (ofLostLife(holder, seen)) {
    ++counts_.released;
    dropped = table_.removeFork(ids);
  } else {
    dropped = put(ids, {ids.value, holder, seen, Clock::now(), false});
  }
}

void RRefTable::onUserDelete(const ForkIds& ids) {
  ForkTable::Dropped dropped;
  const std::lock_guard lock(mutex_);
  const auto found = forks_.find(ids.fork);
  // One of another value is another fork: its holder's loss must still release it.
  const bool known = found != forks_.end() && found->second.value == ids.value;
  if (!known || found->second.asked_for) {
    if (isDead(ids.fork)) ++counts_.repeats;
    markDead(ids.fork);
  }
  if (known) forks_.erase(found);
  dropped = table_.removeFork(ids);
}

void RRefTable::onChildAccept(const RRefKey& fork) {
  {
    const std::lock_guard lock(mutex_);
    if (children_.erase(fork) == 0) ++counts_.repeats;
  }
  table_.childSettled(fork);
}

void RRefTable::onSend(const PickledRRef& rref, Rank to) {
  if (to == self_) return;  // torch settles these without a message
  ForkTable::Dropped dropped;
  const std::lock_guard lock(mutex_);
  if (rref.owner == self_) {
    dropped = put(rref.ids, {rref.ids.value, to, losses_.load(), Clock::now(), false});
  } else {
    children_[rref.ids.fork] = {to, losses_.load()};
  }
}

void RRefTable::undoSend(const PickledRRef& rref) {
  ForkTable::Dropped dropped;
  {
    const std::lock_guard lock(mutex_);
    if (rref.owner == self_) {
      if (forks_.erase(rref.ids.fork) > 0) dropped = table_.removeFork(rref.ids);
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
      if (entry->second.holder != peer || !ofLostLife(peer, entry->second.seen)) {
        ++entry;
        continue;
      }
      if (auto value = table_.removeFork({entry->second.value, entry->first})) {
        dropped.push_back(std::move(value));
      }
      ++released;
      entry = forks_.erase(entry);
    }
    std::erase_if(children_, [&](const auto& child) {
      if (child.second.to != peer || !ofLostLife(peer, child.second.seen)) return false;
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
  for (const auto& [fork, entry] : forks_) {
    all.push_back({{entry.value, fork}, entry.holder, entry.since});
  }
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
