#include "rpc_backend/call/call_table.h"

#include <algorithm>

namespace weft::rpc {

transport::Waited CallTable::waitForRoom(worker_id_t peer, std::size_t limit,
                                         Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  Room& room = rooms_[peer];
  auto waited = transport::Waited::kDone;
  if (!room.waiting.empty() || room.taken >= limit) {
    const auto end = std::min(deadline, transport::deadlineAfter(std::chrono::milliseconds::max()));
    waited = waitInLine(room, limit, lock, end);
  }
  if (waited == transport::Waited::kDone) ++room.taken;
  // Several calls may have ended at once, or this thread gave up.
  if (room.taken < limit) room.wakeFirst();
  return waited;
}

transport::Waited CallTable::waitInLine(Room& room, std::size_t limit,
                                        std::unique_lock<std::mutex>& lock,
                                        Clock::time_point deadline) {
  auto own = room.waiting.emplace(room.waiting.end());
  const auto ready = [&] { return own == room.waiting.begin() && room.taken < limit; };
  auto waited = transport::Waited::kLate;
  while (true) {
    const auto slice = Clock::now() + transport::kInterruptEvery;
    if (own->wait_until(lock, std::min(slice, deadline), ready)) {
      waited = transport::Waited::kDone;
      break;
    }
    if (slice >= deadline) break;
    if (!transport::mayBeInterrupted()) continue;
    // A signal's handler may call the same peer, and would wait behind this thread for ever: while
    // it runs, this thread has no place.
    room.waiting.erase(own);
    if (room.taken < limit) room.wakeFirst();
    lock.unlock();
    const bool stop = transport::interrupted();
    lock.lock();
    own = room.waiting.emplace(room.waiting.begin());
    if (!stop) continue;
    waited = transport::Waited::kInterrupted;
    break;
  }
  room.waiting.erase(own);
  return waited;
}

void CallTable::giveRoomBack(worker_id_t peer) {
  const std::lock_guard lock(mutex_);
  rooms_[peer].giveBack();
}

std::size_t CallTable::waitingForRoom(worker_id_t peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = rooms_.find(peer);
  return found == rooms_.end() ? 0 : found->second.waiting.size();
}

// Call it with the lock when a call leaves the table.
void CallTable::onTaken(const PendingCall& call) {
  if (call.fetched) {
    auto [fetch, last] = fetches_.equal_range(*call.fetched);
    while (fetch != last && fetch->second != call.id)
      ++fetch;
    if (fetch != last) fetches_.erase(fetch);
  }
  if (call.counted) rooms_[call.peer].giveBack();
}

std::uint64_t CallTable::add(PendingCall call) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = call.id = next_id_++;
  const std::optional<RRefKey> fetched = call.fetched;
  calls_.emplace(id, std::move(call));
  try {
    if (fetched) fetches_.emplace(*fetched, id);
  } catch (...) {
    calls_.erase(id);
    throw;
  }
  return id;
}

std::optional<PendingCall> CallTable::take(std::uint64_t id, worker_id_t peer) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(id);
  if (found == calls_.end() || found->second.peer != peer) return std::nullopt;
  PendingCall call = std::move(found->second);
  calls_.erase(found);
  onTaken(call);
  return call;
}

bool CallTable::waits(std::uint64_t id, worker_id_t peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(id);
  return found != calls_.end() && found->second.peer == peer;
}

template <typename Predicate>
std::vector<PendingCall> CallTable::takeIf(Predicate predicate) {
  std::vector<PendingCall> taken;
  const std::lock_guard lock(mutex_);
  for (auto it = calls_.begin(); it != calls_.end();) {
    if (predicate(it->second)) {
      onTaken(it->second);
      taken.push_back(std::move(it->second));
      it = calls_.erase(it);
    } else {
      ++it;
    }
  }
  return taken;
}

std::vector<PendingCall> CallTable::takeAllOf(worker_id_t peer) {
  return takeIf([&](const PendingCall& call) { return call.peer == peer; });
}

std::optional<PendingCall> CallTable::takeCallOf(const JitFuture& future) {
  auto found = takeIf([&](const PendingCall& call) { return call.future.get() == &future; });
  return found.empty() ? std::nullopt : std::optional(std::move(found.front()));
}

std::vector<PendingCall> CallTable::takeFetches(const RRefKey& value) {
  std::vector<PendingCall> taken;
  const std::lock_guard lock(mutex_);
  for (auto fetch = fetches_.find(value); fetch != fetches_.end(); fetch = fetches_.find(value)) {
    auto call = calls_.extract(fetch->second);
    onTaken(call.mapped());
    taken.push_back(std::move(call.mapped()));
  }
  return taken;
}

std::vector<PendingCall> CallTable::takeAll() {
  return takeIf([](const PendingCall&) { return true; });
}

std::vector<PendingCall> CallTable::takeExpired(Clock::time_point now, Clock::time_point& next) {
  next = Clock::time_point::max();
  return takeIf([&](const PendingCall& call) {
    if (call.deadline() <= now) return true;
    next = std::min(next, call.deadline());
    return false;
  });
}

std::vector<WaitingCall> CallTable::oldest(std::size_t most) const {
  std::vector<WaitingCall> all;
  {
    const std::lock_guard lock(mutex_);
    all.reserve(calls_.size());
    for (const auto& [id, call] : calls_)
      all.push_back({call.peer, kindOf(call.type), call.started, call.timeout});
  }
  std::ranges::sort(all, {}, &WaitingCall::started);
  if (all.size() > most) all.resize(most);
  return all;
}

}  // namespace weft::rpc
