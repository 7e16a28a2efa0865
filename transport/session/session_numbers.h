// SessionNumbers: this side's random number for its session with each rank. A rank keeps its number
// until the session is over, also when its connection is accepted before its Peer exists.
//
// Threads: the endpoint's loop thread.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace weft::transport {

class SessionNumbers {
 public:
  // Never 0. Drawn when it is first asked for.
  std::uint64_t of(std::int32_t rank);
  // The session with this number is over; the next one with the rank gets another.
  void forget(std::int32_t rank, std::uint64_t own);

 private:
  std::unordered_map<std::int32_t, std::uint64_t> own_;
};

}  // namespace weft::transport
