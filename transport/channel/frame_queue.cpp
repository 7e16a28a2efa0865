#include "transport/channel/frame_queue.h"

#include <algorithm>
#include <utility>

#include "transport/base/thrown.h"

namespace weft::transport {
namespace {

bool broughtInline(OutFrame& frame, OutFrame::Inline what) {
  bool had_some = false;
  static_cast<void>(thrownBy([&] { had_some = frame.bringInline(what); }));
  return had_some;
}

}  // namespace

void FrameQueue::push(Frames one) {
  unwritten_bytes_ += unwritten(one.front());
  queue_.splice(queue_.end(), one);
}

void FrameQueue::pushFront(Frames one) {
  unwritten_bytes_ += unwritten(one.front());
  queue_.splice(queue_.begin(), one);
}

bool FrameQueue::requeue(Frames one, OutFrame::Inline what) {
  OutFrame& frame = one.front();
  frame.rewind();
  const bool had_some = broughtInline(frame, what);
  unwritten_bytes_ += frame.size();
  const auto place = std::ranges::find_if(
      queue_, [&](const OutFrame& other) { return other.sequence() >= frame.sequence(); });
  queue_.splice(place, one);
  return had_some;
}

FrameQueue::Gathered FrameQueue::gather(std::span<iovec> out) const {
  Gathered gathered{0, queue_.front().fdsToSend()};
  for (const OutFrame& frame : queue_) {
    if (gathered.entries == out.size()) break;
    // Descriptors go with the first byte of a write.
    if (gathered.entries > 0 && !frame.fdsToSend().empty()) break;
    gathered.entries += frame.gather(out.subspan(gathered.entries));
  }
  return gathered;
}

void FrameQueue::written(std::uint64_t bytes, Released& released) {
  unwritten_bytes_ -= bytes;
  while (bytes > 0) {
    OutFrame& frame = queue_.front();
    const std::uint64_t part = std::min(bytes, frame.left());
    frame.advance(part);
    bytes -= part;
    if (frame.left() > 0) return;
    unwritten_bytes_ -= frame.bulkBytes();
    const bool data = frame.kind() == FrameKind::kData;
    if (data) sent_ = std::max(sent_, frame.sequence());
    if (data && mustKeep(frame)) {
      if (frame.untilWritten()) released.owners.push_back(std::move(frame.untilWritten()));
      keep(queue_);
    } else {
      released.frames.splice(released.frames.end(), queue_, queue_.begin());
    }
  }
}

std::shared_ptr<void> FrameQueue::writtenWhole(Frames& one) {
  OutFrame& frame = one.front();
  sent_ = std::max(sent_, frame.sequence());
  if (!mustKeep(frame)) return nullptr;
  keep(one);
  // A half that is still with the bulk connection has its owners there.
  return std::move(frame.untilWritten());
}

void FrameQueue::keep(Frames& from) {
  unacked_bytes_ += from.front().size();
  unacked_.splice(unacked_.end(), from, from.begin());
}

void FrameQueue::acknowledge(std::uint64_t sequence) {
  acked_ = std::max(acked_, sequence);
  while (!unacked_.empty() && unacked_.front().sequence() <= sequence) {
    unacked_bytes_ -= unacked_.front().size();
    release(unacked_);
  }
}

// Freeing what an application made may take long, and take the application's locks, so a thread
// that sends does it, not the loop thread. Frames that own nothing are destroyed at once.
void FrameQueue::release(Frames& from) {
  if (!from.front().ownsBuffers()) return from.pop_front();
  wanted_ = wanted_ || from.front().wantedBack();
  acknowledged_.splice(acknowledged_.end(), from, from.begin());
}

FrameQueue::Frames FrameQueue::takeAcknowledged() noexcept {
  wanted_ = false;
  return std::exchange(acknowledged_, {});
}

FrameQueue::Frames FrameQueue::takeAcknowledged(std::size_t most) noexcept {
  Frames taken;
  while (taken.size() < most && !acknowledged_.empty())
    taken.splice(taken.end(), acknowledged_, acknowledged_.begin());
  return taken;
}

void FrameQueue::rewind() {
  // Control frames were about the former stream.
  std::erase_if(queue_, [](const OutFrame& frame) { return frame.kind() != FrameKind::kData; });
  queue_.splice(queue_.begin(), unacked_);
  unacked_bytes_ = 0;
  unwritten_bytes_ = 0;
  for (OutFrame& frame : queue_) {
    frame.rewind();
    unwritten_bytes_ += frame.size();
  }
}

void FrameQueue::skipReceived(std::uint64_t received) {
  acked_ = std::max(acked_, received);
  while (!queue_.empty() && queue_.front().kind() == FrameKind::kData &&
         queue_.front().sequence() <= received) {
    unwritten_bytes_ -= queue_.front().size();
    sent_ = std::max(sent_, queue_.front().sequence());
    release(queue_);
  }
}

bool FrameQueue::bringInline(OutFrame::Inline what) {
  bool had_some = false;
  unwritten_bytes_ = 0;
  for (OutFrame& frame : queue_) {
    had_some = broughtInline(frame, what) || had_some;
    unwritten_bytes_ += frame.size();
  }
  return had_some;
}

FrameQueue::Frames FrameQueue::takeUnsent(Released& released) {
  Frames unsent = std::exchange(queue_, {});
  std::erase_if(unsent, [](const OutFrame& frame) { return frame.kind() != FrameKind::kData; });
  unwritten_bytes_ = 0;
  released.frames.splice(released.frames.end(), unacked_);
  unacked_bytes_ = 0;
  released.frames.splice(released.frames.end(), acknowledged_);
  return unsent;
}

}  // namespace weft::transport
