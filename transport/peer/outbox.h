// Outbox: the sending side of one peer, shared by all threads that send to it and the
// loop thread.
//
// At any time at most one thread writes to the stream (the "writer"). A caller
// that finds nobody writing and nothing queued writes its message itself, with no lock
// held during the system call; others queue behind it. What a caller could not
// write, the loop thread writes when the stream is ready. Nobody ever waits for a
// system call of another thread.
//
// Messages outlive streams: what was written is kept until the peer has acknowledged it, and goes
// again, in order, over the next stream when one breaks (Session).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/base/error.h"
#include "transport/frame/out_frame.h"
#include "transport/io/stream.h"
#include "transport/options.h"
#include "transport/peer/bulk_connection.h"
#include "transport/session/replay_buffer.h"

namespace weft::transport {

struct OutboxStats {
  const char* transport = "";
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t queued_bytes = 0;   // not written
  std::uint64_t unacked_bytes = 0;  // written, and kept until they are acknowledged
};

class Outbox {
 public:
  // `onWorkAvailable` is called, from any thread and with no lock held, when the loop thread should
  // look (attentionOnLoop()): a connection is wanted, writing must go on, or shut() can complete.
  // `peer` names the peer in errors. Without `replay` a message is let go of as soon as it is
  // written: for senders whose buffers are wanted back at once, and who do without sessions.
  Outbox(const Limits& limits, std::string peer, std::function<void()> onWorkAvailable,
         bool replay = true);

  // Any thread. Waits for room at most `patience`; without one it takes the frame whatever is
  // queued (the loop thread must not wait). Messages that were written and are not acknowledged
  // take room too.
  Error send(OutFrame frame, std::optional<std::chrono::milliseconds> patience);

  // --- loop thread only ---

  // The peer is connected: what it has not received can go, that is what follows frame `received`.
  // Follow with flush(), which completes this when a caller was still writing to a former stream.
  void attach(std::shared_ptr<Stream> stream, std::uint64_t received = 0);
  // The stream is broken (breakOff() was called): what the peer has not acknowledged waits for
  // another one.
  void detach();

  // The stream has a bulk connection now, until it is detached: of messages that carry `threshold`
  // bytes or more half goes over it.
  void setBulkConnection(std::shared_ptr<BulkConnection> bulk, std::uint64_t threshold);

  enum class Flushed : std::uint8_t {
    kDrained,  // nothing is left
    kBlocked,  // wait for the stream to be writable, then flush() again
    kCrowded,  // flush() again in some milliseconds: too many descriptors are on their way
    kBusy,     // a caller is writing, or there is no stream: nothing to do now
    kBroken,   // the stream failed with `broken`
  };
  Flushed flush(int& broken);

  // Queues a control frame behind everything; flush() follows. False: not connected. After a
  // goodbye nothing more is taken.
  bool control(FrameKind kind) { return control(OutFrame::control(kind)); }
  bool control(OutFrame frame);

  // The last data frame received from the peer: rides as an ack on all that is numbered from now
  // on.
  void setReceived(std::uint64_t sequence) noexcept {
    received_.store(sequence, std::memory_order_relaxed);
  }
  // The last such ack that is on its way.
  std::uint64_t lastAckSent() const noexcept {
    return last_ack_sent_.load(std::memory_order_relaxed);
  }
  // The peer has received all frames up to this one. False: they were never sent.
  bool acked(std::uint64_t sequence);
  // The number of the last message taken.
  std::uint64_t lastSequence() const;
  // Lets go of acknowledged messages for which no sender came by.
  void tidy();
  // False: a connection broke while exported memory was on its way, perhaps because the peer cannot
  // take it; that is sent as other bytes then, and so is what comes. Or there is no second time.
  bool mayExport() const noexcept { return may_export_.load(std::memory_order_relaxed); }

  // From now on send() fails with `reason`. True: nobody is writing any more, takeUnsent() may be
  // called. False: a caller is; onWorkAvailable() follows when it has finished.
  bool shut(const Error& reason);
  bool writing() const;
  // Messages that were not written whole to a stream that still stood, in order; all others are
  // let go of.
  std::vector<OutFrame> takeUnsent();

  bool connectionWanted() const;  // something is queued and there is no stream
  bool idle() const;              // nothing is queued or being written
  OutboxStats stats() const;

 private:
  enum class Mode : std::uint8_t { kWaiting, kUp, kShut };
  enum class Writer : std::uint8_t { kNone, kCaller, kLoop };
  struct NextStream {
    std::shared_ptr<Stream> stream;
    std::uint64_t received = 0;
  };

  // With the lock.
  bool hasRoom(std::uint64_t size) const noexcept;
  Error refusal() const;
  // The bulk connection to wake without the lock, if it has a part of the frame.
  std::shared_ptr<BulkConnection> number(OutFrame& frame);
  // What a frame in the queue counts for.
  static std::uint64_t unwritten(const OutFrame& frame) noexcept {
    return frame.left() + frame.laneBytes();
  }
  // Leaves in `frame` what is to be let go of without the lock.
  void afterCaller(OutFrame& frame, std::uint64_t written, int error, std::uint32_t link);
  void attachNow();
  void requeue(OutFrame frame);
  void rewind(OutFrame& frame);
  void count(const OutFrame& frame);
  // Its ack may have come before its writer had the lock again.
  bool mustKeep(const OutFrame& frame) const noexcept {
    return replay_ && frame.sequence() > acknowledged_;
  }
  void release(OutFrame frame);
  using Gone = std::vector<std::shared_ptr<void>>;  // let go of without the lock
  void popWritten(std::uint64_t count, std::vector<OutFrame>& done, Gone& written);

  const Limits& limits_;
  const std::string peer_;
  const std::function<void()> on_work_available_;
  const bool replay_;
  std::atomic<std::uint64_t> received_{0};
  std::atomic<std::uint64_t> last_ack_sent_{0};  // written with the lock
  std::atomic<bool> may_export_;

  mutable std::mutex mutex_;
  std::condition_variable room_;
  Mode mode_ = Mode::kWaiting;
  Writer writer_ = Writer::kNone;
  bool said_goodbye_ = false;
  std::uint32_t waiting_ = 0;       // callers that wait for room
  std::deque<OutFrame> queue_;      // not written whole
  std::uint64_t queued_bytes_ = 0;  // unwritten() of all in queue_
  ReplayBuffer unacked_;            // written whole; numbers below those of queue_
  AckRequests requests_;
  std::vector<OutFrame>
      acked_;  // to be let go of without the lock, by a thread other than the loop
  std::vector<OutFrame> wanted_;  // acknowledged, and their senders wait: for the loop, at once
  std::uint64_t last_sequence_ = 0;
  std::uint64_t acknowledged_ = 0;  // all up to this one have arrived
  std::uint64_t counted_ = 0;       // the last message that messages_sent_ counts
  std::shared_ptr<Stream> stream_;
  std::shared_ptr<BulkConnection> bulk_;
  std::uint64_t lane_threshold_ = 0;
  std::uint32_t link_ = 0;          // counts streams that broke
  bool inline_only_ = false;        // the stream's other end does not see the arena
  std::optional<NextStream> next_;  // a caller still writes to the former one
  int broken_ = 0;                  // errno of a caller's write
  Error reason_;                    // kShut
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t messages_sent_ = 0;
};

}  // namespace weft::transport
