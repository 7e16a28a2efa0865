#include "transport/channel/link.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/os/system_error.h"
#include "transport/base/peer_name.h"
#include "transport/base/thrown.h"
#include "transport/io/iovec_cursor.h"

namespace weft::transport {
namespace {

// One busy peer must not starve the others: after this much the loop serves them.
constexpr int kReadsPerTurn = 32;
constexpr std::uint64_t kBytesPerTurn = std::uint64_t{8} << 20;

}  // namespace

Link::Link(EventLoop& loop, std::shared_ptr<Stream> stream, std::string peer, const Limits& limits,
           FrameHandlers handlers, std::uint64_t received,
           std::atomic<std::uint64_t>& bytes_received, Events events)
    : stream_(std::move(stream)),
      peer_(std::move(peer)),
      reader_(limits, handlers, received),
      events_(std::move(events)),
      poll_(loop, stream_->pollFd(),
            [this](Poll::Ready ready) { guarded([&] { onReady(ready); }); }),
      again_(loop,
             [this] {
               guarded([&] {
                 if (reads()) readTurn();
               });
             }),
      later_(loop, [this] { guarded([&] { events_.on_writable(); }); }),
      bytes_received_(bytes_received) {
  poll_.want(true, false);
}

void Link::onReady(Poll::Ready ready) {
  if (ready.writable) events_.on_writable();
  if (ready.error != 0) {
    // The stream is broken; what has arrived before is still read. libuv says EBADF for an error of
    // the connection.
    drain();
    end(brokenBy(ready.error == EBADF ? ECONNRESET : ready.error));
  } else if (ready.readable && reads()) {
    readTurn();
  }
}

// An exception may leave a frame half read, so this link ends and another one continues.
template <typename Step>
void Link::guarded(Step step) {
  if (const auto thrown = thrownBy(step)) giveUp("it could not be served here (" + *thrown + ")");
}

void Link::giveUp(const std::string& why) {
  end({LinkEnd::Kind::kBroken,
       "its connection was given up after " + upFor() + " because " + why,
       {}});
}

LinkEnd Link::brokenBy(int error) const {
  using Kind = LinkEnd::Kind;
  if (error == 0)
    return {Kind::kBroken, "its connection ended after " + upFor() + " without a goodbye", {}};
  if (error != EBADMSG) {
    return {
        Kind::kBroken, "its connection broke after " + upFor() + " (" + errnoName(error) + ")", {}};
  }
  log(LogLevel::kWarning, "bytes from " + peer_ +
                              " arrived damaged (a checksum did not match); the connection is made "
                              "again and they are sent again. Check the network between the hosts");
  return {Kind::kBroken,
          "bytes from it arrived damaged (a checksum did not match) after " + upFor(),
          {}};
}

std::string Link::upFor() const { return seconds(EventLoop::Clock::now() - since_); }

void Link::wantWrite(bool want) {
  want_write_ = want;
  poll_.want(reads(), want);
}

void Link::resume() {
  guarded([&] {
    if (ended() || !reader_.waiting() || !after(reader_.resume())) return;
    poll_.want(reads(), want_write_);
    if (stream_->holdsBytes() && reads()) again_.start(std::chrono::milliseconds(0));
  });
}

// Call it with the result of each step of the reader. False: the link has ended.
bool Link::after(const Error& problem) {
  // kSystem is not the peer's fault: over another link it sends inline what cannot be mapped here.
  if (problem.code() == ErrorCode::kSystem) {
    giveUp(problem.text());
  } else if (problem) {
    end({LinkEnd::Kind::kProtocol, {}, problem});
  } else if (reader_.ended()) {
    end({LinkEnd::Kind::kGoodbye, {}, {}});
  }
  return !ended();
}

bool Link::readSome() {
  bool read = false;
  guarded([&] { read = readTurn(); });
  return read;
}

bool Link::readTurn() {
  std::uint64_t read = 0;
  for (int i = 0; i < kReadsPerTurn && read < kBytesPerTurn && reads(); ++i) {
    std::array<iovec, IovecCursor::kMaxEntries> entries;
    const std::size_t used = reader_.prepare(entries);
    const auto target = std::span(entries).first(used);
    const std::uint64_t asked = bytesOf(target);
    const IoResult result = stream_->read(target);
    if (result.error == EAGAIN) break;
    if (result.error != 0 || result.end) {
      end(brokenBy(result.error));
      break;
    }
    read += result.count;
    bytes_received_.store(bytes_received_.load(std::memory_order_relaxed) + result.count,
                          std::memory_order_relaxed);
    if (!after(reader_.commit(result.count))) break;
    // It got less than it asked for, so nothing is left for now; asking would cost a system call.
    if (result.count < asked && !stream_->holdsBytes()) break;
  }
  if (stream_->holdsBytes() && reads()) again_.start(std::chrono::milliseconds(0));
  if (read > 0 && !ended()) chooseWakeUp();
  if (!ended() && reader_.waiting()) poll_.want(false, want_write_);
  return read > 0;
}

// Asks to be woken only when many bytes of the current message have come, but never waits for more
// than that message needs, because the next one may not come soon.
void Link::chooseWakeUp() {
  const std::uint64_t left = reader_.bytesToCome();
  if (!wakes_late_ && left <= kWakePiece) return;
  wakes_late_ = left > 1;
  stream_->wakeAt(std::max<std::uint64_t>(left, 1));
}

void Link::drain() {
  constexpr int kTurns = 64;  // far more than a socket's buffer holds
  for (int i = 0; i < kTurns && reads() && readSome(); ++i) {
  }
}

void Link::abandon() {
  events_.on_end = nullptr;  // on_writable stays, because it may be running now
  again_.cancel();
  later_.cancel();
  poll_.want(false, false);
}

void Link::end(const LinkEnd& end) {
  const auto on_end = std::exchange(events_.on_end, nullptr);
  again_.cancel();
  poll_.want(false, want_write_);
  if (on_end) on_end(end);
}

}  // namespace weft::transport
