#include "transport/channel/frame_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace weft::transport {
namespace {

// Makes a frame ready for another stream, without exported memory, which the peer may be unable to
// map. True: it had some.
bool rewound(OutFrame& frame) {
  frame.rewind();
  return frame.bringInline(OutFrame::Inline::kExported);
}

}  // namespace

void FrameQueue::push(OutFrame frame) {
  unwritten_bytes_ += unwritten(frame);
  queue_.push_back(std::move(frame));
}

void FrameQueue::pushFront(OutFrame frame) {
  unwritten_bytes_ += unwritten(frame);
  queue_.push_front(std::move(frame));
}

bool FrameQueue::requeue(OutFrame frame, bool inlined) {
  const bool exported = rewound(frame);
  if (inlined) frame.bringInline(OutFrame::Inline::kAll);
  unwritten_bytes_ += frame.size();
  const auto place = std::find_if(queue_.begin(), queue_.end(), [&](const OutFrame& other) {
    return other.sequence() >= frame.sequence();
  });
  queue_.insert(place, std::move(frame));
  return exported;
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
      if (auto last = frame.takeUntilWritten()) released.owners.push_back(std::move(last));
      keep(std::move(frame));
    } else {
      released.frames.push_back(std::move(frame));
    }
    queue_.pop_front();
  }
}

std::shared_ptr<void> FrameQueue::writtenWhole(OutFrame& frame) {
  sent_ = std::max(sent_, frame.sequence());
  if (!mustKeep(frame)) return nullptr;
  // A half that is still with the bulk connection has its owners there.
  std::shared_ptr<void> last = frame.takeUntilWritten();
  keep(std::move(frame));
  return last;
}

void FrameQueue::keep(OutFrame frame) {
  unacked_bytes_ += frame.size();
  unacked_.push_back(std::move(frame));
}

void FrameQueue::acknowledge(std::uint64_t sequence) {
  acked_ = std::max(acked_, sequence);
  while (!unacked_.empty() && unacked_.front().sequence() <= sequence) {
    unacked_bytes_ -= unacked_.front().size();
    release(std::move(unacked_.front()));
    unacked_.pop_front();
  }
}

// Freeing what an application made may take long, and take the application's locks, so a thread
// that sends does it, not the loop thread. Frames that own nothing are destroyed at once.
void FrameQueue::release(OutFrame frame) {
  if (!frame.ownsBuffers()) return;
  wanted_ = wanted_ || frame.wantedBack();
  acknowledged_.push_back(std::move(frame));
}

FrameQueue::Frames FrameQueue::takeAcknowledged() noexcept {
  wanted_ = false;
  return std::exchange(acknowledged_, {});
}

void FrameQueue::takeAcknowledged(std::span<OutFrame> out) {
  for (std::size_t i = 0; i < out.size() && !acknowledged_.empty(); ++i) {
    out[i] = std::move(acknowledged_.back());
    acknowledged_.pop_back();
  }
}

bool FrameQueue::rewind() {
  // Control frames were about the former stream.
  std::erase_if(queue_, [](const OutFrame& frame) { return frame.kind() != FrameKind::kData; });
  queue_.insert(queue_.begin(), std::make_move_iterator(unacked_.begin()),
                std::make_move_iterator(unacked_.end()));
  unacked_.clear();
  unacked_bytes_ = 0;
  unwritten_bytes_ = 0;
  bool exported = false;
  for (OutFrame& frame : queue_) {
    exported = rewound(frame) || exported;
    unwritten_bytes_ += frame.size();
  }
  return exported;
}

void FrameQueue::skipReceived(std::uint64_t received) {
  acked_ = std::max(acked_, received);
  while (!queue_.empty() && queue_.front().kind() == FrameKind::kData &&
         queue_.front().sequence() <= received) {
    unwritten_bytes_ -= queue_.front().size();
    sent_ = std::max(sent_, queue_.front().sequence());
    release(std::move(queue_.front()));
    queue_.pop_front();
  }
}

void FrameQueue::bringInline() {
  unwritten_bytes_ = 0;
  for (OutFrame& frame : queue_) {
    frame.bringInline(OutFrame::Inline::kAll);
    unwritten_bytes_ += frame.size();
  }
}

FrameQueue::Frames FrameQueue::takeUnsent(Released& released) {
  Frames unsent;
  unsent.reserve(queue_.size());
  for (OutFrame& frame : queue_) {
    if (frame.kind() == FrameKind::kData) unsent.push_back(std::move(frame));
  }
  queue_.clear();
  unwritten_bytes_ = 0;
  std::move(unacked_.begin(), unacked_.end(), std::back_inserter(released.frames));
  unacked_.clear();
  unacked_bytes_ = 0;
  std::move(acknowledged_.begin(), acknowledged_.end(), std::back_inserter(released.frames));
  acknowledged_.clear();
  return unsent;
}

}  // namespace weft::transport
