// AdaptiveSpin: looks for work for some microseconds before a thread sleeps.
//
// Waking a sleeping thread takes most of the time of a small call. A thread that expects the next
// message soon does better to poll for it. Whether that pays is learnt: polling that finds
// something lengthens the next budget, polling in vain shortens it, down to an occasional try. The
// longest budget covers a peer that sleeps and has to be woken first, so that two that wait for
// each other in turns find back to polling both.
//
// It yields while it polls. Where another thread has kept the core meanwhile, cores are scarce, and
// a thread that sleeps is woken sooner than one that has yielded: tries become rarer.
//
// An idle thread does not spin: it sleeps after one budget, and polls again only after it has had
// work.
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
    const auto start = Clock::now();
    auto now = start;
    do {
      for (int i = 0; i < kLooksPerYield; ++i) {
        if (ready()) {
          budget_ = std::min(budget_ * 2, kLongest);
          retry_every_ = kRetryEvery;
          return true;
        }
        pause();
      }
      const auto before = Clock::now();
      sched_yield();
      now = Clock::now();
      if (now - before > kLongest) {
        budget_ = Nanos::zero();
        retry_every_ = std::min(retry_every_ * 2, kRetryRarely);
        skip_ = retry_every_;
        return ready();
      }
    } while (now - start < budget_);
    budget_ /= 2;
    skip_ = retry_every_;
    return false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Nanos = std::chrono::nanoseconds;
  static constexpr Nanos kLongest{100'000};
  static constexpr Nanos kShortest{3'000};
  static constexpr int kLooksPerYield = 16;
  // Waits without polling between two tries; where the core is lost again and again, at most.
  static constexpr unsigned kRetryEvery = 16;
  static constexpr unsigned kRetryRarely = 1024;

  bool worthTrying() {
    // With one core nobody else can make progress while this thread looks.
    static const bool several_cores = std::thread::hardware_concurrency() > 1;
    if (!several_cores) return false;
    if (budget_ >= kShortest) return true;
    if (skip_ > 0) {
      --skip_;
      return false;
    }
    budget_ = kLongest;
    return true;
  }
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  Nanos budget_ = kLongest;
  unsigned retry_every_ = kRetryEvery;
  unsigned skip_ = 0;
};

}  // namespace weft::transport
