#include "transport/session/replay_buffer.h"

#include <algorithm>
#include <utility>

#include "transport/base/check.h"

namespace weft::transport {
namespace {

constexpr std::size_t kFirstRing = 8;
constexpr std::size_t kKeepRing = 256;  // a longer one is given back when it is empty
constexpr std::uint64_t kAskBytes = std::uint64_t{4} << 20;
constexpr std::uint32_t kAskFrames = 512;

}  // namespace

void ReplayBuffer::grow() {
  std::vector<OutFrame> larger(std::max(kFirstRing, 2 * ring_.size()));
  for (std::size_t i = 0; i < count_; ++i)
    larger[i] = std::move(ring_[at(i)]);
  ring_ = std::move(larger);
  first_ = 0;
}

void ReplayBuffer::push(OutFrame frame) {
  if (count_ == ring_.size()) grow();
  bytes_ += frame.size();
  ring_[at(count_++)] = std::move(frame);
}

OutFrame ReplayBuffer::popOldest() {
  WEFT_CHECK(count_ > 0, "a frame is kept");
  OutFrame frame = std::move(ring_[first_]);
  first_ = at(1);
  --count_;
  bytes_ -= frame.size();
  if (count_ == 0 && ring_.size() > kKeepRing) {
    std::vector<OutFrame>().swap(ring_);
    first_ = 0;
  }
  return frame;
}

OutFrame ReplayBuffer::popNewest() {
  WEFT_CHECK(count_ > 0, "a frame is kept");
  OutFrame frame = std::move(ring_[at(count_ - 1)]);
  --count_;
  bytes_ -= frame.size();
  return frame;
}

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

}  // namespace weft::transport
