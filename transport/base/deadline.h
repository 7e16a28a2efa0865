// Deadlines: points of the steady clock until which a caller waits.
#pragma once

#include <algorithm>
#include <chrono>

namespace weft::transport {

using Deadline = std::chrono::steady_clock::time_point;

// `timeout` from now. A century is the longest: the clock's nanoseconds end after 292 years, and
// whoever waits adds to a deadline now and then.
inline Deadline deadlineAfter(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365 * 100);
  return std::chrono::steady_clock::now() + std::min(timeout, kLongest);
}

}  // namespace weft::transport
