// Link: the reading end of one authenticated stream. It waits until the stream is readable or
// writable, reads frames, and notices how the stream ends. The Outbox writes.
//
// Threads: the endpoint's loop thread. Ownership: shares the stream with the Outbox.
// Failure: calls on_end once, and reads nothing afterwards. Where it cannot go on itself, mostly
// for lack of memory, the link is given up as kBroken.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "transport/frame/frame_reader.h"
#include "transport/io/event_loop.h"
#include "transport/io/poll.h"
#include "transport/io/stream.h"
#include "transport/io/timer.h"
#include "transport/options.h"

namespace weft::transport {

// How a link ended.
struct LinkEnd {
  enum class Kind : std::uint8_t {
    kGoodbye,   // the peer shut down in order
    kBroken,    // `how` says why; the session can continue over another link
    kQuiet,     // nothing came for long, as `how` says; another link may do better
    kSilent,    // nothing came for peer_timeout
    kProtocol,  // `problem` says what the peer did wrong
  };
  Kind kind = Kind::kBroken;
  std::string how;
  Error problem;
};

class Link {
 public:
  struct Events {
    // Called once. It must not destroy the link; post that.
    std::function<void(const LinkEnd&)> on_end;
    std::function<void()> on_writable;
  };

  // `peer` names the peer in the log. `received`: the number of the last data frame that earlier
  // links of the session brought.
  Link(EventLoop& loop, std::shared_ptr<Stream> stream, std::string peer, const Limits& limits,
       FrameHandlers handlers, std::uint64_t received, std::atomic<std::uint64_t>& bytes_received,
       Events events);

  void wantWrite(bool want);
  // Calls on_writable once, after `pause`.
  void writeLater(std::chrono::milliseconds pause) { later_.start(pause); }
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
  // Whether on_end was called, or abandon().
  bool ended() const noexcept { return events_.on_end == nullptr; }

  // What an errno of the stream comes to; 0: it ended. Says in the log what a person should know.
  LinkEnd brokenBy(int error) const;
  // How long it has been up, for people.
  std::string upFor() const;
  Stream& stream() noexcept { return *stream_; }

 private:
  bool reads() const noexcept { return !ended() && !reader_.waiting(); }
  void onReady(Poll::Ready ready);
  bool readTurn();  // may throw
  template <typename Step>
  void guarded(Step step);
  bool after(const Error& problem);
  void giveUp(const std::string& why);
  void end(const LinkEnd& end);
  void chooseWakeUp();

  const std::shared_ptr<Stream> stream_;
  const std::string peer_;
  const EventLoop::Clock::time_point since_ = EventLoop::Clock::now();
  FrameReader reader_;
  Events events_;
  Poll poll_;
  Timer again_;  // reads what the stream holds
  Timer later_;
  bool want_write_ = false;
  bool wakes_late_ = false;                     // wakeAt() was told more than one byte
  std::atomic<std::uint64_t>& bytes_received_;  // written here only, read by any thread
};

}  // namespace weft::transport
