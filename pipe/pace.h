// Threads or none: which is faster is found by trying.
//
// Handing a task to another thread costs a wake-up, and Python stages of many small operations
// fight over the interpreter's lock. Large stages gain nearly their number from threads. No figure
// known beforehand tells which it is, so the first mini-batches run one way and the other, the
// faster way is kept, and the other is tried again now and then, since shapes change. What is
// computed does not depend on it.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>

#include "pipe/crew.h"

namespace weft::pipe {

// Any thread may call it.
class Pace {
 public:
  // Shorter tasks than this are not worth a trial of threads.
  static constexpr double kShortTask = 20e-6;
  // Measured so often each before the first choice; the better one counts (the first has warm-up in
  // it).
  static constexpr unsigned kTrials = 2;
  static constexpr unsigned kTryAgainEvery = 128;

  Running choose() {
    const std::lock_guard lock(mutex_);
    Way& in_line = ways_[index(Running::kInline)];
    Way& threads = ways_[index(Running::kThreads)];
    if (in_line.runs < kTrials) return Running::kInline;
    if (in_line.seconds < kShortTask) return Running::kInline;
    if (threads.runs < kTrials) return Running::kThreads;
    const Running best = threads.seconds < in_line.seconds ? Running::kThreads : Running::kInline;
    if (++since_trial_ < kTryAgainEvery) return best;
    since_trial_ = 0;
    return best == Running::kThreads ? Running::kInline : Running::kThreads;
  }

  // A whole mini-batch took `seconds` per task.
  void report(Running running, double seconds) {
    const std::lock_guard lock(mutex_);
    Way& way = ways_[index(running)];
    const bool settled = way.runs >= kTrials;
    way.seconds = way.runs == 0 ? seconds
                  : settled     ? 0.75 * way.seconds + 0.25 * seconds
                                : std::min(way.seconds, seconds);
    ++way.runs;
  }

 private:
  struct Way {
    double seconds = 0;
    std::size_t runs = 0;
  };
  static std::size_t index(Running running) { return static_cast<std::size_t>(running); }

  std::mutex mutex_;
  std::array<Way, 2> ways_;
  unsigned since_trial_ = 0;
};

}  // namespace weft::pipe
