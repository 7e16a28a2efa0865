// ReplayBuffer: the frames that were written and not yet acknowledged, oldest first. A session goes
// on from them when its connection was made again. The sending half of a Session.
//
// Owners of buffers are held, nothing is copied: what is kept here counts towards max_queued_bytes.
// Not thread-safe: the Outbox guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/frame/out_frame.h"

namespace weft::transport {

class ReplayBuffer {
 public:
  bool empty() const noexcept { return count_ == 0; }
  std::size_t count() const noexcept { return count_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  const OutFrame& oldest() const noexcept { return ring_[first_]; }

  // The frame that follows the newest.
  void push(OutFrame frame);
  OutFrame popOldest();
  OutFrame popNewest();

 private:
  std::size_t at(std::size_t index) const noexcept { return (first_ + index) & (ring_.size() - 1); }
  void grow();

  std::vector<OutFrame> ring_;  // its size is 0 or a power of two; kept, so that none is allocated
                                // for each message
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::uint64_t bytes_ = 0;
};

// When to ask the receiver for an ack: often enough that a sender that waits for room does not wait
// for the receiver's next tick, so seldom that it costs nothing.
class AckRequests {
 public:
  explicit AckRequests(std::uint64_t max_queued_bytes) noexcept;
  // A frame of so many bytes is numbered: should it ask?
  bool due(std::uint64_t bytes) noexcept;

 private:
  std::uint64_t every_bytes_;
  std::uint64_t bytes_ = 0;
  std::uint32_t frames_ = 0;
};

}  // namespace weft::transport
