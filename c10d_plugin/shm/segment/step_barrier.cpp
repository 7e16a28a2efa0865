#include "c10d_plugin/shm/segment/step_barrier.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "c10d_plugin/core/ranks_text.h"
#include "transport/base/interruption.h"
#include "transport/base/peer_name.h"

namespace weft::collectives::shm {
namespace {

using Clock = std::chrono::steady_clock;

// A sleeping rank looks for failures, and for Ctrl-C, this often.
constexpr std::chrono::milliseconds kSlice{50};

// A sleep shorter than this would have been a successful spin had all ranks spun: the spin forgets
// what it learnt then. Otherwise ranks that spun in vain a few times would all sleep in every later
// step, because no spin is long enough for others that sleep.
constexpr std::chrono::microseconds kSoon{100};

}  // namespace

StepBarrier::StepBarrier(Segment& segment, int rank)
    : segment_(segment),
      rank_(rank),
      size_(segment.layout().ranks),
      own_progress_(segment.control(rank).progress),
      own_sleepers_(segment.control(rank).sleepers) {
  for (int other = 0; other < size_; ++other) {
    progress_.push_back(&segment.control(other).progress);
  }
}

// The counters wrap around; ranks are never two steps apart.
bool StepBarrier::hasEnded(int rank, std::uint32_t step) const noexcept {
  const std::uint32_t theirs =
      progress_[static_cast<std::size_t>(rank)]->load(std::memory_order_acquire);
  return static_cast<std::int32_t>(theirs - step) >= 0;
}

bool StepBarrier::allHaveEnded() noexcept {
  while (look_at_ < size_ && hasEnded(look_at_))
    ++look_at_;
  return look_at_ == size_;
}

Error StepBarrier::next(const OpFingerprint& op, Deadline deadline, bool first) {
  ++number_;
  look_at_ = 0;
  // Sequentially consistent on both sides, here and in sleep(): either the sleeper sees the new
  // value or this sees the sleeper.
  own_progress_.exchange(static_cast<std::uint32_t>(number_), std::memory_order_seq_cst);
  if (own_sleepers_.load(std::memory_order_seq_cst) != 0) wakeAll(own_progress_);
  transport::AdaptiveSpin& spin = first ? first_spin_ : later_spin_;
  if (allHaveEnded()) return outcome();
  const auto began = Clock::now();
  // An operation of many steps may run for seconds and never sleep.
  if (!first && transport::interrupted()) return interruption(op);
  if (spin.until([this] { return allHaveEnded(); })) return outcome();
  Error error = sleep(op, deadline, began);
  // The others slept too, and it took this long because all did: see kSoon.
  if (Clock::now() - began < kSoon) spin = {};
  return error;
}

// A rank ends a step before it waits for the others, so all may have ended it although one of them
// gave up waiting; that one may have changed the data that it offered.
Error StepBarrier::outcome() const { return segment_.failed() ? segment_.failure() : Error::ok(); }

Error StepBarrier::sleep(const OpFingerprint& op, Deadline deadline, Deadline began) {
  auto look_up = began + kSlice;
  int last_awaited = look_at_;
  while (!allHaveEnded()) {
    // Sleep for one rank at a time: most others have ended the step when that one has.
    last_awaited = look_at_;
    Control& other = segment_.control(look_at_);
    other.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = other.progress.load(std::memory_order_seq_cst);
    const auto now = Clock::now();
    const auto until = std::min(look_up, deadline);
    if (!hasEnded(look_at_) && !segment_.failed() && until > now) {
      sleepOn(other.progress, seen, until - now);
    }
    other.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (allHaveEnded()) break;
    if (segment_.failed()) return segment_.failure();
    const auto after = Clock::now();
    if (after < look_up && after < deadline) continue;
    if (Error error = findTrouble(op, began)) return error;
    if (transport::interrupted()) return interruption(op);
    look_up = after + kSlice;
    if (after >= deadline && !allHaveEnded()) {
      return endGroup({ErrorCode::kTimeout, "Timed out: " + ranksAsText(awaited()) +
                                                " did not come to " + op.describe() + "; rank " +
                                                std::to_string(rank_) + " waited " +
                                                transport::seconds(after - began)});
    }
  }
  wait_times_.add(last_awaited, Clock::now() - began);
  return outcome();
}

Error StepBarrier::findTrouble(const OpFingerprint& op, Deadline began) {
  for (const int other : awaited()) {
    const bool died = segment_.died(other);
    const bool left = segment_.presence(other) == Presence::kLeft;
    // It may have ended the step before it went.
    if ((!died && !left) || hasEnded(other)) continue;
    return endGroup({ErrorCode::kPeerLost,
                     "rank " + std::to_string(other) +
                         (died ? " died (its process is gone)" : " left the group (closed)") +
                         " while rank " + std::to_string(rank_) + " waited for it in " +
                         op.describe() + ", for " + transport::seconds(Clock::now() - began)});
  }
  return Error::ok();
}

Error StepBarrier::interruption(const OpFingerprint& op) {
  Error own{ErrorCode::kInterrupted, interruptedText(rank_, "it ran " + op.describe())};
  segment_.fail(own);
  return own;  // even where another rank's reason was first
}

Error StepBarrier::endGroup(const Error& reason) {
  segment_.fail(reason);
  return segment_.failure();  // another rank's reason may have been first
}

std::vector<int> StepBarrier::awaited() const {
  const std::uint32_t own = own_progress_.load(std::memory_order_acquire);
  std::vector<int> ranks;
  for (int other = 0; other < size_; ++other) {
    if (!hasEnded(other, own)) ranks.push_back(other);
  }
  return ranks;
}

}  // namespace weft::collectives::shm
