// Threads that run an event loop beside its own while they wait (EventLoop::drive).
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::transport {

// One thread of each kind at a time.
enum class Driver : std::uint8_t {
  kCaller,      // waits for the answer to a call
  kServer,      // waits for a request to run
  kNextServer,  // waits for the one that comes while the other runs its own
};
inline constexpr std::size_t kDrivers = 3;

enum class Driven : std::uint8_t {
  kDone,
  kLate,
  kTaken,    // another thread of that kind drives
  kStopped,  // the loop ends
};

}  // namespace weft::transport
