#include "rpc_backend/call/call_table.h"

#include <algorithm>

namespace weft::rpc {

transport::Waited CallTable::waitForRoom(worker_id_t peer, std::size_t limit,
                                         Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  std::size_t& count = counted_[peer];  // stays where it is: no entry is erased
  auto waited = transport::Waited::kDone;
  if (count >= limit) {
    ++waiting_for_room_;
    const auto end = std::min(deadline, transport::deadlineAfter(std::chrono::milliseconds::max()));
    waited = transport::waitInterruptibly(room_, lock, end, [&] { return count < limit; });
    --waiting_for_room_;
  }
  if (waited == transport::Waited::kDone) ++count;
  return waited;
}

// With the lock.
void CallTable::giveBack(const PendingCall& call) {
  if (!call.counted) return;
  --counted_[call.peer];
  if (waiting_for_room_ > 0) room_.notify_all();  // they may wait for different peers
}

std::uint64_t CallTable::add(PendingCall call) {
  const std::lock_guard lock(mutex_);
  call.id = next_id_;
  calls_.emplace(next_id_, std::move(call));
  return next_id_++;
}

std::optional<PendingCall> CallTable::take(std::uint64_t id, worker_id_t peer) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(id);
  if (found == calls_.end() || found->second.peer != peer) return std::nullopt;
  PendingCall call = std::move(found->second);
  calls_.erase(found);
  giveBack(call);
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
      giveBack(it->second);
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
  return takeIf([&](const PendingCall& call) { return call.fetched == value; });
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

std::size_t CallTable::size() const {
  const std::lock_guard lock(mutex_);
  return calls_.size();
}

}  // namespace weft::rpc
