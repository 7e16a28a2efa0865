#include "transport/io/turns/loop_turns.h"

#include <algorithm>
#include <utility>

namespace weft::transport {

std::optional<Driven> LoopTurns::enter(Driver kind) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return Driven::kStopped;
  if (inside_[of(kind)]) return Driven::kTaken;
  for (const Who who : {kOwn, of(kind)}) {
    if (gates_[who] != nullptr) continue;
    Result<std::unique_ptr<LoopGate>> gate = LoopGate::create(loop_fd_);
    if (!gate.ok()) return Driven::kTaken;
    gates_[who] = std::move(gate).value();
  }
  inside_[of(kind)] = true;
  shared_ = true;
  return std::nullopt;
}

void LoopTurns::leave(Driver kind) {
  // Inside the lock: who has called stop() may destroy this.
  const std::lock_guard lock(mutex_);
  inside_[of(kind)] = false;
  left_.notify_all();
}

LoopGate::Woken LoopTurns::wait(Who who, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    wakes_at_[who] = std::min(deadline, next_timer_);
    deadline = wakes_at_[who];
    if (who != kOwn) waiting_.push_back(who);
    if (!taken_) choose();
  }
  const LoopGate::Woken woken = gates_[who]->wait(deadline);
  const std::lock_guard lock(mutex_);
  std::erase(waiting_, who);
  if (woken == LoopGate::Woken::kReady) {
    taken_ = true;
    if (open_ == who) open_ = kNobody;
  } else if (!taken_) {
    choose();
  }
  return woken;
}

void LoopTurns::take() {
  const std::lock_guard lock(mutex_);
  taken_ = true;
  if (open_ != kNobody) gates_[std::exchange(open_, kNobody)]->close();
}

void LoopTurns::give(Deadline next_timer) {
  const std::lock_guard lock(mutex_);
  taken_ = false;
  next_timer_ = next_timer;
  choose();
}

void LoopTurns::choose() {
  const Who next = waiting_.empty() ? kOwn : waiting_.back();
  if (open_ != next) {
    if (open_ != kNobody) gates_[open_]->close();
    gates_[next]->open();
    open_ = next;
  }
  if (next_timer_ < wakes_at_[next]) {
    wakes_at_[next] = next_timer_;
    gates_[next]->ring();
  }
}

void LoopTurns::ring(Driver kind) {
  const std::lock_guard lock(mutex_);
  if (inside_[of(kind)]) gates_[of(kind)]->ring();
}

void LoopTurns::stop() {
  std::unique_lock lock(mutex_);
  stopped_ = true;
  for (Who who = 0; who < kDrivers; ++who)
    if (inside_[who]) gates_[who]->ring();
  left_.wait(lock,
             [&] { return std::find(inside_.begin(), inside_.end(), true) == inside_.end(); });
}

}  // namespace weft::transport
