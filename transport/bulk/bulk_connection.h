// BulkConnection: the second TCP connection of a link. The first half of a large message's bytes
// goes over the link and the second half over the bulk connection, each moved by a thread of its
// own on both sides: writing and reading a socket copies its bytes, and two cores copy faster than
// one.
//
// It carries nothing but those halves, one after another in the order of their frames. The frame
// says that it is split (FrameHead::kSplit) and how long the half is. This class has the thread and
// the end of it; BulkReader and BulkWriter have the halves.
//
// Threads: all bulk connections of an endpoint are read and written on one loop of their own ("the
// bulk thread"). push(), wake(), written() and the counts: any thread. The rest: the endpoint's
// loop thread. Failure: on_broken, once. The link is given up then, and the session sends again.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "transport/base/arrivals.h"
#include "transport/base/buffer.h"
#include "transport/bulk/bulk_reader.h"
#include "transport/bulk/bulk_writer.h"
#include "transport/io/event_loop.h"
#include "transport/io/poll.h"
#include "transport/io/stream.h"

namespace weft::transport {

// Sums over all bulk connections that a peer had. Read by any thread.
struct BulkCounts {
  std::atomic<std::uint64_t> sent{0};
  std::atomic<std::uint64_t> received{0};
};

class BulkConnection : public std::enable_shared_from_this<BulkConnection> {
 public:
  // Called on the bulk thread with no lock held: they should post.
  struct Events {
    std::function<void()> on_arrived;          // after arrived() said no
    std::function<void(int error)> on_broken;  // once; errno, 0: it ended
  };
  // `loop`: the bulk thread's. End with cut().
  static std::shared_ptr<BulkConnection> open(EventLoop& loop, std::shared_ptr<Stream> stream,
                                              std::shared_ptr<BulkCounts> counts, Events events);

  // Queues the half of a message, and holds its owners until it is written. wake() follows, once
  // the caller holds no lock. With `filling`, which is the message's, the half begins `before`
  // bytes into its buffers; wake() then follows whenever more bytes are there, and all are before
  // the next such message.
  void push(std::vector<OwnedBuffer> half, std::shared_ptr<const Filling> filling = nullptr,
            std::uint64_t before = 0) {
    writer_.push(std::move(half), std::move(filling), before);
  }
  void wake();

  // The next half goes `into` these; an entry without a place is skipped. Only after the half
  // before it has arrived. `arrivals`: null, or who is told of its bytes, before arrived() says
  // yes.
  void read(std::span<const iovec> into, std::shared_ptr<Arrivals> arrivals = nullptr);
  // Whether the half has arrived. If not, on_arrived is called when it has.
  bool arrived() { return reader_.arrived(); }
  // Reads what has come, of which the system may not tell yet (Stream::wakeAt).
  void readNow() { post(&BulkConnection::readSome); }
  // As Stream's.
  std::uint64_t bytesCame() const noexcept { return stream_->bytesCame(); }
  // Nothing waits to be written.
  bool written() const noexcept { return writer_.written(); }
  // Ends it: when this returns nobody reads into or writes from anything it was given.
  void cut();

 private:
  BulkConnection(EventLoop& loop, std::shared_ptr<Stream> stream,
                 std::shared_ptr<BulkCounts> counts, Events events);
  void post(void (BulkConnection::*step)());

  // The bulk thread.
  void onReady(Poll::Ready ready);
  void guarded(void (BulkConnection::*step)());
  void readSome();
  void writeSome();
  void want(bool readable, bool writable);
  void fail(int error);

  EventLoop& loop_;
  const std::shared_ptr<Stream> stream_;
  const std::shared_ptr<BulkCounts> counts_;
  const std::function<void(int error)> on_broken_;
  BulkReader reader_;
  BulkWriter writer_;
  std::atomic<bool> cut_{false};

  // The bulk thread's.
  std::optional<Poll> poll_;
  bool want_read_ = false;
  bool want_write_ = false;
  bool broken_ = false;
};

}  // namespace weft::transport
