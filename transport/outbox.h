// Outbox: the sending side of one peer, shared by all threads that send to it and the
// loop thread.
//
// At any time at most one thread writes to the stream (the "writer"). A caller
// that finds nobody writing and nothing queued writes its message itself, with no lock
// held during the system call; others queue behind it. What a caller could not
// write, the loop thread writes when the stream is ready. Nobody ever waits for a
// system call of another thread.
#pragma once

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

#include "transport/error.h"
#include "transport/options.h"
#include "transport/out_frame.h"
#include "transport/stream.h"

namespace weft::transport {

struct OutboxStats {
  const char* transport = "";
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t queued_bytes = 0;
};

class Outbox {
 public:
  // `attention` is called, from any thread and with no lock held, when the loop thread should look
  // (attentionOnLoop()): a connection is wanted, writing must go on, or shut() can complete.
  // `peer` names the peer in errors.
  Outbox(const Limits& limits, std::string peer, std::function<void()> attention);

  // Any thread. Waits for room at most `patience`; without one it takes the frame whatever is
  // queued (the loop thread must not wait).
  Error send(OutFrame frame, std::optional<std::chrono::milliseconds> patience);

  // --- loop thread only ---

  // The peer is connected: what is queued can go. Follow with flush().
  void attach(std::shared_ptr<Stream> stream);

  enum class Flushed : std::uint8_t {
    kDrained,  // nothing is left
    kBlocked,  // wait for the stream to be writable, then flush() again
    kBusy,     // a caller is writing, or there is no stream: nothing to do now
    kBroken,   // the stream failed with `broken`
  };
  Flushed flush(int& broken);

  // Queues a control frame behind everything; flush() follows. False: not connected. After a
  // goodbye nothing more is taken.
  bool control(FrameKind kind) { return control(OutFrame::control(kind)); }
  bool control(OutFrame frame);

  // From now on send() fails with `reason`. True: nobody is writing any more, takeUnsent() may be
  // called. False: a caller is; attention() follows when it has finished.
  bool shut(const Error& reason);
  bool writing() const;
  std::vector<OutFrame> takeUnsent();

  bool connectionWanted() const;  // something is queued and there is no stream
  bool idle() const;              // nothing is queued or being written
  OutboxStats stats() const;

 private:
  enum class Mode : std::uint8_t { kWaiting, kUp, kShut };
  enum class Writer : std::uint8_t { kNone, kCaller, kLoop };

  void popWritten(std::uint64_t count, std::vector<OutFrame>& done);

  const Limits& limits_;
  const std::string peer_;
  const std::function<void()> attention_;

  mutable std::mutex mutex_;
  std::condition_variable room_;
  Mode mode_ = Mode::kWaiting;
  Writer writer_ = Writer::kNone;
  bool said_goodbye_ = false;
  std::uint32_t waiting_ = 0;  // callers that wait for room
  std::deque<OutFrame> queue_;
  std::uint64_t queued_bytes_ = 0;  // unwritten bytes of queue_
  std::uint64_t last_sequence_ = 0;
  std::shared_ptr<Stream> stream_;
  int broken_ = 0;  // errno of a caller's write
  Error reason_;    // kShut
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t messages_sent_ = 0;
};

}  // namespace weft::transport
