// SendSequence: the sending half of a Session's rules. It numbers the data frames to one peer, and
// says which ack each frame carries and whether it asks for one. No IO, no clock, no thread.
//
// Threads: setReceived() and lastAckSent(): any; the rest: with the Outbox's lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "transport/frame/out_frame.h"

namespace weft::transport {

class SendSequence {
 public:
  // What OutFrame::seal() writes into a frame.
  struct Stamp {
    std::uint64_t sequence = 0;
    std::uint64_t ack = 0;
    std::uint16_t flags = 0;
  };

  // Without `replay` no frame is kept, so none asks for an ack.
  SendSequence(std::uint64_t max_queued_bytes, bool replay) noexcept
      : replay_(replay), ask_bytes_(std::min(kAskBytes, max_queued_bytes / 8)) {}

  // The frame is the next one to be written: data get the next number.
  Stamp next(const OutFrame& frame) noexcept;
  // The number of the last data frame; 0: there was none.
  std::uint64_t last() const noexcept { return last_; }

  // The number of the last data frame received from the peer. All frames stamped from now on
  // acknowledge it.
  void setReceived(std::uint64_t sequence) noexcept {
    received_.store(sequence, std::memory_order_relaxed);
  }
  // The last ack that was stamped.
  std::uint64_t lastAckSent() const noexcept {
    return last_ack_sent_.load(std::memory_order_relaxed);
  }

 private:
  // Often enough that a sender does not wait for room until the receiver's next tick, rarely enough
  // to cost nothing.
  static constexpr std::uint64_t kAskBytes = std::uint64_t{4} << 20;
  static constexpr std::uint32_t kAskFrames = 512;

  bool askIsDue(std::uint64_t bytes) noexcept;

  const bool replay_;
  const std::uint64_t ask_bytes_;
  // Numbered since the last one that asked for an ack.
  std::uint64_t unasked_bytes_ = 0;
  std::uint32_t unasked_frames_ = 0;
  std::uint64_t last_ = 0;
  std::atomic<std::uint64_t> received_{0};
  std::atomic<std::uint64_t> last_ack_sent_{0};
};

}  // namespace weft::transport
