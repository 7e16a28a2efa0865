#include "rpc_backend/agent/call_table.h"

#include <algorithm>

namespace weft::rpc {

using torch::distributed::rpc::worker_id_t;

std::uint64_t PendingCalls::add(PendingCall call) {
  const std::lock_guard lock(mutex_);
  call.id = next_id_++;
  const std::uint64_t id = call.id;
  calls_.emplace(id, std::move(call));
  return id;
}

template <typename Predicate>
std::optional<PendingCall> PendingCalls::takeOne(std::uint64_t id, Predicate predicate) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(id);
  if (found == calls_.end() || !predicate(found->second)) return std::nullopt;
  PendingCall call = std::move(found->second);
  calls_.erase(found);
  return call;
}

std::optional<PendingCall> PendingCalls::take(std::uint64_t id) {
  return takeOne(id, [](const PendingCall&) { return true; });
}

std::optional<PendingCall> PendingCalls::take(std::uint64_t id, worker_id_t peer) {
  return takeOne(id, [&](const PendingCall& call) { return call.peer == peer; });
}

bool PendingCalls::waits(std::uint64_t id, worker_id_t peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(id);
  return found != calls_.end() && found->second.peer == peer;
}

template <typename Predicate>
std::vector<PendingCall> PendingCalls::takeIf(Predicate predicate) {
  std::vector<PendingCall> taken;
  const std::lock_guard lock(mutex_);
  for (auto it = calls_.begin(); it != calls_.end();) {
    if (predicate(it->second)) {
      taken.push_back(std::move(it->second));
      it = calls_.erase(it);
    } else {
      ++it;
    }
  }
  return taken;
}

std::vector<PendingCall> PendingCalls::takeAllOf(worker_id_t peer) {
  return takeIf([&](const PendingCall& call) { return call.peer == peer; });
}

std::vector<PendingCall> PendingCalls::takeAll() {
  return takeIf([](const PendingCall&) { return true; });
}

std::vector<PendingCall> PendingCalls::takeExpired(Clock::time_point now, Clock::time_point& next) {
  next = Clock::time_point::max();
  return takeIf([&](const PendingCall& call) {
    if (call.deadline() <= now) return true;
    next = std::min(next, call.deadline());
    return false;
  });
}

std::size_t PendingCalls::size() const {
  const std::lock_guard lock(mutex_);
  return calls_.size();
}

}  // namespace weft::rpc
