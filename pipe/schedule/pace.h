// Threads or none: which is faster is found by trying.
//
// Handing a task to another thread costs a wake-up, and Python stages of many small operations
// fight over the interpreter's lock. Large stages gain nearly their number from threads. No figure
// known beforehand tells which it is, so the first mini-batches run one way and the other, the
// faster way is kept, and both are tried again: soon at first, then less and less often. Tried runs
// are measured by their tasks' efforts (effort.h), so that a machine that is busy with other work
// does not decide. What is computed does not depend on any of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>

#include "pipe/schedule/stage_executor.h"

namespace weft::pipe {

//   kWarmUp --one run--> kTrial --enough measured runs--> kSettled
//   kSettled --the time for it has come, or tasks in line have become longer--> kTrial
enum class PaceState : unsigned char { kWarmUp, kTrial, kSettled };

// Any thread may call it.
class Pace {
 public:
  // Each way is measured so often before it is chosen. The best run counts: what disturbs one only
  // adds to it.
  static constexpr unsigned kTrials = 3;
  // Threads must promise, and then take, at most this share of the time in line. Those that pay
  // already are kept until they cost more than none: what differs from run to run is a tenth too.
  static constexpr double kWorthwhile = 0.9;
  // Tasks shorter than this, in seconds, stay in line: a few hand-overs that come late eat the
  // gain.
  static constexpr double kShortTask = 25e-6;
  // Mini-batches until the next trial. The time doubles whenever a trial changes nothing.
  static constexpr unsigned kSoonest = 8;
  static constexpr unsigned kLatest = 128;
  // Tasks in line that take so much longer than when they were judged are judged again.
  static constexpr double kOtherWork = 2;

  struct Plan {
    Running running;
    bool measured;
  };
  Plan choose() {
    const std::lock_guard lock(mutex_);
    if (state_ == PaceState::kWarmUp) return {Running::kInline, false};
    if (state_ == PaceState::kSettled && --left_ == 0) tryAgain(1);
    if (state_ == PaceState::kSettled) return {best_, false};
    return {in_line_.runs < trials_ ? Running::kInline : Running::kThreads, true};
  }

  // A run that was not measured took so long by the clock, per task.
  void report(Running running, double seconds) {
    const std::lock_guard lock(mutex_);
    if (state_ == PaceState::kWarmUp) return tryAgain(kTrials);
    if (state_ != PaceState::kSettled || running != Running::kInline) return;
    recent_[next_recent_++ % recent_.size()] = seconds;
    lately_ = *std::min_element(recent_.begin(), recent_.end());
    if (lately_ > bar_) tryAgain(1);
  }

  // A run in line was measured: its time, and what threads would take if stages did not hinder each
  // other. Per task.
  void reportInLine(double seconds, double threads_at_best) {
    const std::lock_guard lock(mutex_);
    if (state_ != PaceState::kTrial) return;
    in_line_.add(seconds);
    at_best_.add(threads_at_best);
    const bool hopeless =
        in_line_.seconds < kShortTask || at_best_.seconds > kWorthwhile * in_line_.seconds;
    if (in_line_.runs >= trials_ && hopeless) judge(Running::kInline);
  }
  // A run on threads was measured.
  void reportThreads(double seconds) {
    const std::lock_guard lock(mutex_);
    if (state_ != PaceState::kTrial) return;
    threads_.add(seconds);
    if (threads_.runs < trials_) return;
    const double share = best_ == Running::kThreads ? 1 : kWorthwhile;
    const bool pays = threads_.seconds < share * in_line_.seconds;
    judge(pays ? Running::kThreads : Running::kInline);
  }

 private:
  struct Best {
    void add(double one) { seconds = runs++ == 0 ? one : std::min(seconds, one); }
    double seconds = 0;
    unsigned runs = 0;
  };
  void tryAgain(unsigned trials) {
    in_line_ = at_best_ = threads_ = {};
    trials_ = trials;
    state_ = PaceState::kTrial;
  }

  // One run of a way is enough to leave things as they are.
  void judge(Running best) {
    const bool news = best != best_;
    if (news && trials_ < kTrials) {
      trials_ = kTrials;
      return;
    }
    wait_ = news || wait_ == 0 ? kSoonest : std::min(2 * wait_, kLatest);
    best_ = best;
    left_ = wait_;
    bar_ = kOtherWork * std::max({in_line_.seconds, lately_, kShortTask});
    recent_.fill(0);
    lately_ = 0;
    state_ = PaceState::kSettled;
  }

  std::mutex mutex_;
  PaceState state_ = PaceState::kWarmUp;
  unsigned trials_ = kTrials;  // runs of each way in the present trial
  Best in_line_;
  Best at_best_;
  Best threads_;
  Running best_ = Running::kInline;
  unsigned wait_ = 0;  // from one trial to the next
  unsigned left_ = 0;  // of it
  // Unmeasured runs in line, by the clock: the last ones, the shortest of them, and how long that
  // may get.
  std::array<double, 4> recent_{};
  std::size_t next_recent_ = 0;
  double lately_ = 0;
  double bar_ = 0;
};

}  // namespace weft::pipe
