#include "transport/session/send_sequence.h"

namespace weft::transport {

bool SendSequence::askIsDue(std::uint64_t bytes) noexcept {
  unasked_bytes_ += bytes;
  ++unasked_frames_;
  if (unasked_bytes_ < ask_bytes_ && unasked_frames_ < kAskFrames) return false;
  unasked_bytes_ = 0;
  unasked_frames_ = 0;
  return true;
}

SendSequence::Stamp SendSequence::next(const OutFrame& frame) noexcept {
  const bool data = frame.kind() == FrameKind::kData;
  if (data) ++last_;
  const std::uint64_t ack = received_.load(std::memory_order_relaxed);
  last_ack_sent_.store(ack, std::memory_order_relaxed);
  const bool due = data && replay_ && askIsDue(frame.size());
  const bool ask = due || (data && replay_ && frame.wantedBack() && frame.ownsBuffers());
  return {last_, ack, ask ? FrameHead::kAckNow : std::uint16_t{0}};
}

}  // namespace weft::transport
