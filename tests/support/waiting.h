// How the C++ tests let time pass: the only place where they sleep.
//
// A test waits for an event where it can: a promise, a condition variable, a pipe, a key of the
// store. These are for where it cannot.
#pragma once

#include <chrono>
#include <thread>

namespace weft {

// Time that is part of the test itself: a slow stage, a late rank, the moment of a fault.
inline void takes(std::chrono::nanoseconds time) { std::this_thread::sleep_for(time); }

// Time for other threads or processes to block in a call, which nothing shows from outside. If they
// come later than that the test sees less, and must hold all the same.
inline void letOthersBlock(std::chrono::nanoseconds time) { takes(time); }

// Time in which what is forbidden would happen; that it did not is checked after it.
inline void timeForWhatMustNotHappen(std::chrono::nanoseconds time) { takes(time); }

// Polls for what gives no event: counters, files, other processes. False: not within the limit.
template <typename Condition>
[[nodiscard]] bool waitUntil(Condition condition, std::chrono::nanoseconds limit,
                             std::chrono::nanoseconds interval = std::chrono::milliseconds(1)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    takes(interval);
  }
  return true;
}

}  // namespace weft
