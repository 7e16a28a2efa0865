// IdleDetector: tells when memory that is kept warm has not been used for a while, so that most of
// it can go back to the system. Threads: one, which looks now and then.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

namespace weft::transport {

class IdleDetector {
 public:
  static constexpr std::chrono::seconds kAfter{10};
  // What is kept nevertheless, and the most that goes back at once (which takes milliseconds).
  static constexpr std::uint64_t kKeep = std::uint64_t{4} << 20;
  static constexpr std::uint64_t kTrimAtOnce = std::uint64_t{16} << 20;

  // `uses`: a count that grows with each use.
  bool look(std::uint64_t uses, std::chrono::steady_clock::time_point now) {
    if (uses != std::exchange(uses_at_last_look_, uses)) {
      since_ = now;
      return false;
    }
    return now - since_ >= kAfter;
  }

 private:
  std::uint64_t uses_at_last_look_ = 0;
  std::chrono::steady_clock::time_point since_{};
};

}  // namespace weft::transport
