// ReplayBuffer: the frames that were written and not yet acknowledged, oldest first. They are
// written again when the connection was made again.
//
// Holds the owners of buffers and copies nothing: its bytes count towards max_queued_bytes.
// Threads: none of its own; the Outbox guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/frame/out_frame.h"

namespace weft::transport {

class ReplayBuffer {
 public:
  bool empty() const noexcept { return first_ == frames_.size(); }
  std::size_t count() const noexcept { return frames_.size() - first_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  const OutFrame& oldest() const noexcept { return frames_[first_]; }

  // The frame that follows the newest.
  void push(OutFrame frame);
  OutFrame popOldest();
  OutFrame popNewest();

 private:
  // The entries before first_ are empty. The memory is kept, so that messages allocate none.
  std::vector<OutFrame> frames_;
  std::size_t first_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace weft::transport
