// AdaptiveSpin: looks for work for some microseconds before a thread sleeps.
//
// Waking a sleeping thread takes most of the time of a small call. A thread that expects the next
// message soon does better to poll for it. Whether that pays is learnt: polling that finds
// something lengthens the next budget, polling in vain shortens it, down to an occasional try. It
// yields while it polls, so that other threads run where cores are scarce. An idle thread does not
// spin: it sleeps after one budget, and polls again only after it has had work.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace weft::transport {

// One per thread; not thread-safe.
class AdaptiveSpin {
 public:
  // True as soon as `ready()` is; false when the present budget ran out first. `ready` must be
  // cheap and may be called many times.
  template <typename Ready>
  bool until(Ready&& ready) {
    if (!worthTrying()) return false;
    const auto start = std::chrono::steady_clock::now();
    const auto end = start + budget_;
    do {
      for (int i = 0; i < kLooksPerYield; ++i) {
        if (ready()) {
          budget_ = std::min(budget_ * 2, kLongest);
          return true;
        }
        pause();
      }
      sched_yield();
    } while (std::chrono::steady_clock::now() < end);
    budget_ /= 2;
    return false;
  }

 private:
  using Nanos = std::chrono::nanoseconds;
  static constexpr Nanos kLongest{50'000};
  static constexpr Nanos kShortest{3'000};
  static constexpr int kLooksPerYield = 16;
  static constexpr unsigned kRetryEvery = 64;

  bool worthTrying() {
    // With one core nobody else can make progress while this thread looks.
    static const bool several_cores = std::thread::hardware_concurrency() > 1;
    if (!several_cores) return false;
    if (budget_ >= kShortest) return true;
    if (++skipped_ < kRetryEvery) return false;
    skipped_ = 0;
    budget_ = kLongest / 2;
    return true;
  }
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  Nanos budget_ = kLongest / 2;
  unsigned skipped_ = 0;
};

}  // namespace weft::transport
