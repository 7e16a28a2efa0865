// FrameQueue: the frames for one peer in the order of their numbers: those that are not written
// whole, and those that are written and not acknowledged.
//
// Threads: none of its own; the Outbox calls it with its lock. Frames hold owners whose destructors
// may run anything, so they leave it in `Released` or in vectors, to be destroyed without the lock.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "transport/frame/out_frame.h"
#include "transport/session/replay_buffer.h"

namespace weft::transport {

class FrameQueue {
 public:
  using Frames = std::vector<OutFrame>;
  // What is not needed any more, to be destroyed without the lock.
  struct Released {
    Frames frames;
    std::vector<std::shared_ptr<void>> owners;
  };

  // Without `replay` a frame is released when it is written, else when it is acknowledged.
  explicit FrameQueue(bool replay) : replay_(replay) {}

  bool empty() const noexcept { return queue_.empty(); }
  // Not written, or not acknowledged.
  std::size_t heldFrames() const noexcept { return queue_.size() + unacked_.count(); }
  std::uint64_t unwrittenBytes() const noexcept { return unwritten_bytes_; }
  std::uint64_t unackedBytes() const noexcept { return unacked_.bytes(); }
  // Messages that were written whole: the number of the last one.
  std::uint64_t messagesSent() const noexcept { return sent_; }

  // --- to be written ---
  void push(OutFrame frame);
  // Its first bytes are written.
  void pushFront(OutFrame frame);
  // Puts a frame that was written to a broken stream back into its place, `inlined` as by
  // bringInline(). True: it had exported memory, which it carries inline now.
  bool requeue(OutFrame frame, bool inlined);

  // Where the next bytes are, and the descriptors to send with the first of them.
  struct Gathered {
    std::size_t entries = 0;
    std::span<const int> fds;
  };
  Gathered gather(std::span<iovec> out) const;
  // So many of them are written.
  void written(std::uint64_t bytes, Released& released);
  // Counts a frame that is written whole and never was in the queue. Destroy what it leaves in
  // `frame`, and what it returns, without the lock.
  std::shared_ptr<void> writtenWhole(OutFrame& frame);

  // --- acknowledged ---
  void acknowledge(std::uint64_t sequence);
  bool isAcknowledged(const OutFrame& frame) const noexcept { return frame.sequence() <= acked_; }
  // Acknowledged frames, to be destroyed: by threads that send, or now and then.
  Frames takeAcknowledged() noexcept;
  // At most out.size() of them.
  void takeAcknowledged(std::span<OutFrame> out);
  // Whether to release them now instead of leaving that to threads that send: they are many, or a
  // sender waits for its buffers.
  bool releaseNow() const noexcept { return wanted_ || acknowledged_.size() > kMaxAcknowledged; }

  // --- another stream ---
  // The stream is broken: all that is not acknowledged is to be written again. True: as requeue().
  bool rewind();
  // The other end of the next stream has received the frames up to this one.
  void skipReceived(std::uint64_t received);
  // The next stream's other end does not see shared memory.
  void bringInline();

  // Messages that were not written whole, in order. All else is moved to `released`.
  Frames takeUnsent(Released& released);

 private:
  // What a frame in the queue counts for.
  static std::uint64_t unwritten(const OutFrame& frame) noexcept {
    return frame.left() + frame.bulkBytes();
  }
  // Its ack may come before its writer has the lock again.
  bool mustKeep(const OutFrame& frame) const noexcept { return replay_ && !isAcknowledged(frame); }
  void release(OutFrame frame);

  static constexpr std::size_t kMaxAcknowledged = 64;

  const bool replay_;
  std::deque<OutFrame> queue_;
  std::uint64_t unwritten_bytes_ = 0;  // of all in queue_
  ReplayBuffer unacked_;               // written whole; numbers below those of queue_
  Frames acknowledged_;
  bool wanted_ = false;      // a sender of one of these waits for its buffers
  std::uint64_t acked_ = 0;  // all up to this one have arrived
  std::uint64_t sent_ = 0;   // all up to this one were written whole
};

}  // namespace weft::transport
