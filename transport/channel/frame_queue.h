// FrameQueue: the frames for one peer, in the order of their numbers: those that are not written
// whole, and those that are written but not acknowledged.
//
// A frame keeps its node of a list from send() to its ack: once it has its number, nothing that
// moves it needs memory, so that none is lost from the order.
//
// Threads: the Outbox calls it with its lock held. Frames hold owners whose destructors may run
// anything, so it gives them back in `Released` or in lists, to be destroyed without the lock.
// Failure: none, except that written() may throw, before the next stream's rewind().
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "transport/frame/out_frame.h"

namespace weft::transport {

class FrameQueue {
 public:
  using Frames = std::list<OutFrame>;
  // What is not needed any more, to be destroyed without the lock.
  struct Released {
    Frames frames;
    std::vector<std::shared_ptr<void>> owners;
  };

  // Without `replay` a frame is released when it is written, else when it is acknowledged.
  explicit FrameQueue(bool replay) : replay_(replay) {}

  bool empty() const noexcept { return queue_.empty(); }
  // How many are not written or not acknowledged.
  std::size_t heldFrames() const noexcept { return queue_.size() + unacked_.size(); }
  std::uint64_t unwrittenBytes() const noexcept { return unwritten_bytes_; }
  std::uint64_t unackedBytes() const noexcept { return unacked_bytes_; }
  // How many messages were written whole, which is the number of the last one.
  std::uint64_t messagesSent() const noexcept { return sent_; }

  // --- to be written; `one` has one frame ---
  void push(Frames one);
  // For a frame whose first bytes are written.
  void pushFront(Frames one);
  // Puts a frame that was written to a broken stream back into its place, and brings `what` inline.
  // True: as bringInline().
  bool requeue(Frames one, OutFrame::Inline what);

  // Where the next bytes are, and the descriptors to send with the first of them.
  struct Gathered {
    std::size_t entries = 0;
    std::span<const int> fds;
  };
  Gathered gather(std::span<iovec> out) const;
  // So many bytes of them are written.
  void written(std::uint64_t bytes, Released& released);
  // Counts a frame that is written whole and never was in the queue. Returns
  // Message::until_written. Destroy what it leaves in `one`, and what it returns, without the lock.
  std::shared_ptr<void> writtenWhole(Frames& one);

  // --- acknowledged ---
  void acknowledge(std::uint64_t sequence);
  bool isAcknowledged(const OutFrame& frame) const noexcept { return frame.sequence() <= acked_; }
  // The acknowledged frames, to be destroyed by a thread that sends, or now and then.
  Frames takeAcknowledged() noexcept;
  Frames takeAcknowledged(std::size_t most) noexcept;
  // Whether to release them now instead of leaving that to threads that send: there are many, or a
  // sender waits for its buffers.
  bool releaseNow() const noexcept { return wanted_ || acknowledged_.size() > kMaxAcknowledged; }

  // --- another stream ---
  // The stream is broken: marks all that is not acknowledged as unwritten.
  void rewind();
  // The other end of the next stream has received the frames up to this one.
  void skipReceived(std::uint64_t received);
  // The next stream's other end may be unable to map that. True: a frame had some, and carries it
  // inline now. Without memory for it a frame stays as it is; where it cannot be sent so, the
  // stream breaks, and it is tried again with the next one.
  bool bringInline(OutFrame::Inline what);

  // The messages that were not written whole, in order. Moves all others to `released`.
  Frames takeUnsent(Released& released);

 private:
  // What a frame in the queue counts in unwritten_bytes_.
  static std::uint64_t unwritten(const OutFrame& frame) noexcept {
    return frame.left() + frame.bulkBytes();
  }
  // Whether a written frame must wait for its ack, which may have come before its writer has the
  // lock again.
  bool mustKeep(const OutFrame& frame) const noexcept { return replay_ && !isAcknowledged(frame); }
  // Each takes the first of `from`.
  void keep(Frames& from);
  void release(Frames& from);

  static constexpr std::size_t kMaxAcknowledged = 64;

  const bool replay_;
  Frames queue_;
  std::uint64_t unwritten_bytes_ = 0;  // of all in queue_
  // Written whole; numbers below those of queue_. They hold their owners until they are
  // acknowledged, to be written again when the connection was made again.
  Frames unacked_;
  std::uint64_t unacked_bytes_ = 0;
  Frames acknowledged_;
  bool wanted_ = false;      // a sender of one of these waits for its buffers
  std::uint64_t acked_ = 0;  // all up to this one have arrived
  std::uint64_t sent_ = 0;   // all up to this one were written whole
};

}  // namespace weft::transport
