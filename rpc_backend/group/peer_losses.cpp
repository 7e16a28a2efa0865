#include "rpc_backend/group/peer_losses.h"

namespace weft::rpc {

// With the lock. Null: it was never lost.
const PeerLosses::Loss* PeerLosses::find(worker_id_t peer) const {
  const auto found = losses_.find(peer);
  return found == losses_.end() ? nullptr : &found->second;
}

void PeerLosses::add(worker_id_t peer, const transport::Error& why) {
  const std::lock_guard lock(mutex_);
  if (const Loss* const known = find(peer); known != nullptr && known->state != State::kBack)
    return;
  const bool refuses_us = why.code() == transport::ErrorCode::kAuthFailed ||
                          why.code() == transport::ErrorCode::kDuplicate;
  losses_[peer] = {why.text(), refuses_us ? State::kRefusesUs : State::kLost, Clock::now(), {}};
}

void PeerLosses::setRefusesUs(worker_id_t peer, const transport::Error& why) {
  const std::lock_guard lock(mutex_);
  Loss& loss = losses_[peer];
  loss.reason = why.text();
  loss.state = State::kRefusesUs;
}

void PeerLosses::setBack(worker_id_t peer) {
  const std::lock_guard lock(mutex_);
  if (const auto found = losses_.find(peer); found != losses_.end())
    found->second.state = State::kBack;
}

PeerLosses::Clock::duration PeerLosses::endOutage(worker_id_t peer) {
  const std::lock_guard lock(mutex_);
  Loss& loss = losses_[peer];
  loss.state = State::kBack;
  loss.outage = Clock::now() - loss.since;
  return *loss.outage;
}

std::optional<std::string> PeerLosses::lossOf(worker_id_t peer) const {
  const std::lock_guard lock(mutex_);
  const Loss* const loss = find(peer);
  if (loss == nullptr || loss->state == State::kBack) return std::nullopt;
  return loss->reason;
}

bool PeerLosses::refusesUs(worker_id_t peer) const {
  const std::lock_guard lock(mutex_);
  const Loss* const loss = find(peer);
  return loss != nullptr && loss->state == State::kRefusesUs;
}

std::optional<std::string> PeerLosses::lastReason(worker_id_t peer) const {
  const std::lock_guard lock(mutex_);
  const Loss* const loss = find(peer);
  return loss == nullptr ? std::nullopt : std::optional(loss->reason);
}

std::map<worker_id_t, std::string> PeerLosses::all() const {
  const std::lock_guard lock(mutex_);
  std::map<worker_id_t, std::string> reasons;
  for (const auto& [peer, loss] : losses_)
    reasons.emplace(peer, loss.reason);
  return reasons;
}

std::optional<PeerLosses::Clock::duration> PeerLosses::lastOutage(worker_id_t peer) const {
  const std::lock_guard lock(mutex_);
  const Loss* const loss = find(peer);
  return loss == nullptr ? std::nullopt : loss->outage;
}

}  // namespace weft::rpc
