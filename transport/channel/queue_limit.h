// QueueLimit: limits how much waits to be sent to one peer (Limits::max_queued_bytes), and lets
// threads wait for room. Messages that were written but not acknowledged take room, too.
//
// Threads: any, with the Outbox's lock, which await() releases while it waits. Ownership: it
// borrows all it is given. Failure: the errors say what was tried.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "transport/base/deadline.h"
#include "transport/base/error.h"
#include "transport/channel/frame_queue.h"
#include "transport/options.h"

namespace weft::transport {

class QueueLimit {
 public:
  // `peer` names the peer in errors.
  QueueLimit(const Limits& limits, const FrameQueue& queue, const std::string& peer)
      : limits_(limits), queue_(queue), peer_(peer) {}

  // Waits for room for so many bytes, at most `patience` from the first call on with the same
  // `until`, which is empty at first. kTimeout, or kInterrupted by Ctrl-C.
  Error await(std::unique_lock<std::mutex>& lock, std::uint64_t size,
              std::chrono::milliseconds patience, std::optional<Deadline>& until);
  // For a thread that cannot wait: whether this frame would be one too many. Senders that wait
  // cannot queue so many, so most of them are answers to a peer that keeps asking and reads
  // nothing.
  bool isOverrun(const OutFrame& frame) const noexcept;
  Error overrun() const;

  // Frames were written or acknowledged, or soon may be: there may be room.
  void notify() {
    if (waiting_ > 0) room_.notify_all();
  }
  // Nothing is sent any more, so nobody needs to wait.
  void lift() {
    lifted_ = true;
    room_.notify_all();
  }

 private:
  bool hasRoom(std::uint64_t size) const noexcept;
  std::uint64_t heldBytes() const noexcept {
    return queue_.unwrittenBytes() + queue_.unackedBytes();
  }

  const Limits& limits_;
  const FrameQueue& queue_;
  const std::string& peer_;
  std::condition_variable room_;
  std::uint32_t waiting_ = 0;
  bool lifted_ = false;
};

}  // namespace weft::transport
