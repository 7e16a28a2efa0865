#include "transport/session/replay_buffer.h"

#include <utility>

#include "transport/base/check.h"

namespace weft::transport {
namespace {

constexpr std::size_t kKeep = 256;  // room for so many frames is kept when there are none

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

}  // namespace weft::transport
