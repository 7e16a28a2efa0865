// Outbox: the sending side of one peer, shared by all threads that send to it and the loop thread.
//
// At most one thread at a time writes to the stream (the "writer"). A caller that finds nobody
// writing and nothing queued writes its message itself, with no lock held during the system call.
// Other callers queue behind it. What a caller could not write, the loop thread writes when the
// stream is ready. No thread ever waits for a system call of another one.
//
// Messages outlive streams: a written message is kept until the peer has acknowledged it. If a
// stream breaks, what is not acknowledged is sent again, in order, over the next one (Session).
//
// Threads: send(), stats() and mayExport(): any; the rest: the loop thread.
// Failure: send() returns it; flush() says that the stream broke. Where there is no memory send()
// throws, and has taken nothing; control() likewise.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "transport/base/error.h"
#include "transport/bulk/bulk_connection.h"
#include "transport/channel/frame_order.h"
#include "transport/channel/frame_queue.h"
#include "transport/channel/queue_limit.h"
#include "transport/frame/out_frame.h"
#include "transport/io/stream.h"
#include "transport/options.h"

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
  // The session gets the acks that are sent. `on_work_available` is called, from any thread and
  // with no lock held, when the loop thread is needed: a connection is wanted, flush() is due, or
  // takeUnsent() is possible. `peer` names the peer in errors. Without `replay` a message is
  // released as soon as it is written: for senders who want their buffers back at once and do
  // without sessions.
  Outbox(const Limits& limits, Session& session, std::string peer,
         std::function<void()> on_work_available, bool replay = true);

  // Takes a frame, and writes it if nothing is before it. Waits for room (QueueLimit) at most
  // `patience`; without one, for the loop thread, which must not wait, it takes the frame whatever
  // is queued. Also waits for bytes that are not there yet (Message::filling), and writes them as
  // they come if nothing else is being written.
  Error send(OutFrame content, std::optional<std::chrono::milliseconds> patience);

  // The peer is connected, and has received the frames up to `received`; those after it can be
  // written. Follow with flush().
  void attach(std::shared_ptr<Stream> stream, std::uint64_t received = 0);
  // The stream is broken (breakOff() was called). What the peer has not acknowledged waits for
  // another stream.
  void detach();

  // The stream has a bulk connection until detach(). Half of each message that carries `threshold`
  // bytes or more goes over it.
  void setBulkConnection(std::shared_ptr<BulkConnection> bulk, std::uint64_t threshold);

  enum class Flushed : std::uint8_t {
    kDrained,        // nothing is left
    kBlocked,        // wait for the stream to be writable, then flush() again
    kBackpressured,  // too many descriptors are in flight: flush() again in some milliseconds
    kBusy,           // a caller is writing, or there is no stream: nothing to do now
    kBroken,         // the stream failed with `error`
  };
  Flushed flush(int& error);

  // Queues a control frame behind everything else; follow with flush(). False: it is not connected,
  // has said goodbye, or the peer does not read.
  bool control(FrameKind kind) { return control(OutFrame::control(kind)); }
  bool control(OutFrame content);

  // The peer has received all frames up to this one. False: this one was never sent.
  bool acked(std::uint64_t sequence);
  // The number of the last message taken.
  std::uint64_t lastSequence() const;
  // Releases acknowledged messages that no sending thread has released.
  void tidy();
  // Whether messages may carry exported memory. False once a connection broke while some was in
  // flight, perhaps because the peer cannot map it; also without `replay`.
  bool mayExport() const noexcept { return may_export_.load(std::memory_order_relaxed); }

  // From now on send() fails with `reason`. A later call replaces the reason.
  void shut(const Error& reason);
  // After shut(): the messages that were not written whole, or were written to a stream that broke,
  // in order; releases all others. Nullopt: a caller still writes; on_work_available is called when
  // it is done.
  std::optional<FrameQueue::Frames> takeUnsent();

  bool connectionWanted() const;  // something is queued and there is no stream
  OutboxStats stats() const;

 private:
  enum class Mode : std::uint8_t { kWaiting, kUp, kShut };
  enum class Writer : std::uint8_t { kNone, kCaller, kLoop };

  // These are called with the lock.
  Error awaitTurn(std::unique_lock<std::mutex>& lock, OutFrame& frame,
                  std::optional<std::chrono::milliseconds> patience);
  // Whether the thread that sends may write its frame itself.
  bool mayWrite() const noexcept {
    return mode_ == Mode::kUp && writer_ == Writer::kNone && queue_.empty();
  }
  // After a caller has written to `stream`. Destroy what it leaves in `one` and what it returns
  // without the lock.
  std::shared_ptr<void> afterCaller(FrameQueue::Frames& one, const Stream& stream);
  Flushed flushSome(int& error);  // without the lock; may throw
  void stopExporting() noexcept { may_export_.store(false, std::memory_order_relaxed); }

  const std::string peer_;
  const std::function<void()> on_work_available_;
  std::atomic<bool> may_export_;

  mutable std::mutex mutex_;  // guards what follows
  Mode mode_ = Mode::kWaiting;
  Writer writer_ = Writer::kNone;
  FrameQueue queue_;
  QueueLimit limit_;
  FrameOrder order_;
  std::shared_ptr<Stream> stream_;
  Error reason_;  // unless ok: why nothing is taken any more
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace weft::transport
