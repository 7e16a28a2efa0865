// Link: the reading end of one authenticated stream. It waits until the stream is readable or
// writable, reads frames, and notices how the stream ends. The Outbox writes.
//
// Threads: the endpoint's loop thread. Ownership: shares the stream with the Outbox.
// Failure: calls on_end once, and reads nothing afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "transport/frame/frame_reader.h"
#include "transport/io/event_loop.h"
#include "transport/io/poll.h"
#include "transport/io/stream.h"
#include "transport/io/timer.h"
#include "transport/options.h"

namespace weft::transport {

struct LinkEnd {
  enum class Kind : std::uint8_t {
    kGoodbye,   // the peer said so
    kBroken,    // `error`: errno, 0: the stream ended without a goodbye
    kProtocol,  // `problem` is what the peer did wrong
    kGivenUp,   // `problem` is this side's; another link may do better
  };
  Kind kind = Kind::kBroken;
  int error = 0;
  Error problem;
};

class Link {
 public:
  struct Events {
    // Called once. It must not destroy the link; post that.
    std::function<void(const LinkEnd&)> on_end;
    std::function<void()> on_writable;
  };

  // `received`: the number of the last data frame that earlier links of the session brought.
  Link(EventLoop& loop, std::shared_ptr<Stream> stream, const Limits& limits,
       FrameHandlers handlers, std::uint64_t received, std::atomic<std::uint64_t>& bytes_received,
       Events events);

  void wantWrite(bool want);
  // Goes on if the bulk connection has brought what this waits for.
  void resume();
  // Reads what is there, up to a budget. False: nothing came.
  bool readSome();
  // Reads and reports nothing any more; it may be destroyed later.
  void abandon();
  // Reads all there is, before the link is given up for another reason.
  void drain();

  // Whether it waits for the half of a message that comes over the bulk connection.
  bool waiting() const noexcept { return reader_.waiting(); }

  Stream& stream() noexcept { return *stream_; }

 private:
  bool reads() const noexcept { return events_.on_end != nullptr && !reader_.waiting(); }
  void onReady(Poll::Ready ready);
  bool readTurn();  // may throw
  template <typename Step>
  void guarded(Step step);
  bool after(Error problem);
  void end(const LinkEnd& end);
  void chooseWakeUp();

  std::shared_ptr<Stream> stream_;
  FrameReader reader_;
  Events events_;
  Poll poll_;
  Timer again_;  // reads what the stream holds
  bool want_write_ = false;
  bool wakes_late_ = false;                     // wakeAt() was told more than one byte
  std::atomic<std::uint64_t>& bytes_received_;  // written here only, read by any thread
};

}  // namespace weft::transport
