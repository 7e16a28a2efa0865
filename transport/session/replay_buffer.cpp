#include "transport/session/replay_buffer.h"

#include <algorithm>
#include <utility>

#include "transport/base/check.h"

namespace weft::transport {
namespace {

constexpr std::size_t kKeep = 256;  // room for so many frames is kept when there are none
constexpr std::uint64_t kAskBytes = std::uint64_t{4} << 20;
constexpr std::uint32_t kAskFrames = 512;

}  // namespace

void ReplayBuffer::push(OutFrame frame) {
  if (frames_.size() == frames_.capacity() && first_ > frames_.size() / 2) {
    frames_.erase(frames_.begin(), frames_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
  bytes_ += frame.size();
  frames_.push_back(std::move(frame));
}

OutFrame ReplayBuffer::popOldest() {
  WEFT_CHECK(!empty(), "a frame is kept");
  OutFrame frame = std::move(frames_[first_++]);
  bytes_ -= frame.size();
  if (empty()) {
    first_ = 0;
    frames_.clear();
    if (frames_.capacity() > kKeep) frames_.shrink_to_fit();
  }
  return frame;
}

OutFrame ReplayBuffer::popNewest() {
  WEFT_CHECK(!empty(), "a frame is kept");
  OutFrame frame = std::move(frames_.back());
  frames_.pop_back();
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
