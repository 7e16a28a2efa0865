// Arrivals: is told of a received message's bytes as they come into its buffers, so that the first
// of them can be used while the others are on the way.
//
// Threads: the endpoint's loop thread and its bulk thread, perhaps both at once. Neither may be
// delayed. Bytes that are in shared memory when the message is announced are not reported.
#pragma once

#include <cstddef>

namespace weft::transport {

class Arrivals {
 public:
  virtual ~Arrivals() = default;
  // These bytes of one buffer are there, and stay as they are.
  virtual void onBytes(const std::byte* begin, std::size_t size) noexcept = 0;
};

}  // namespace weft::transport
