#include "transport/session/send_sequence.h"

#include <algorithm>

namespace weft::transport {
namespace {

constexpr std::uint64_t kAskBytes = std::uint64_t{4} << 20;
constexpr std::uint32_t kAskFrames = 512;

}  // namespace

AckRequests::AckRequests(std::uint64_t max_queued_bytes) noexcept
    : every_bytes_(std::min(kAskBytes, max_queued_bytes / 8)) {}

bool AckRequests::due(std::uint64_t bytes) noexcept {
  bytes_ += bytes;
  ++frames_;
  if (bytes_ < every_bytes_ && frames_ < kAskFrames) return false;
  bytes_ = 0;
  frames_ = 0;
  return true;
}

SendSequence::Stamp SendSequence::next(const OutFrame& frame) noexcept {
  const bool data = frame.kind() == FrameKind::kData;
  if (data) ++last_;
  const std::uint64_t ack = received_.load(std::memory_order_relaxed);
  last_ack_sent_.store(ack, std::memory_order_relaxed);
  const bool due = data && replay_ && requests_.due(frame.size());
  const bool ask = due || (data && replay_ && frame.wantedBack() && frame.ownsBuffers());
  return {last_, ack, ask ? FrameHead::kAckNow : std::uint16_t{0}};
}

}  // namespace weft::transport
