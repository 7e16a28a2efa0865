// Stream: a connected byte stream that never blocks. The plain one is a socket; TLS and the
// simulated one of the session tests are others.
//
// read() and write() may be called by two different threads at once (one each). The descriptor
// is closed by the destructor, so whoever writes holds a shared_ptr.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "transport/base/unique_fd.h"

namespace weft::transport {

// While more than this is to come of a message, its reader is woken for pieces of this size
// (Stream::wakeAt). A sender on the same host wakes it for each 64 KiB otherwise, which takes it
// longer than filling them; and what is read in small pieces costs both sides a lock each time.
inline constexpr std::size_t kWakePiece = std::size_t{512} << 10;

std::uint64_t bytesOf(std::span<const iovec> entries) noexcept;

struct IoResult {
  std::size_t count = 0;  // bytes moved
  int error = 0;          // errno; EAGAIN: nothing moved, try when ready
  bool end = false;       // read only: the peer will send no more
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual IoResult read(std::span<iovec> into) = 0;
  virtual IoResult write(std::span<iovec> from) = 0;
  // No more bytes will be written; the peer reads the end after what was written.
  virtual void finishWriting() = 0;
  // Breaks both directions at once, also under a thread that is in write().
  virtual void breakOff() = 0;
  virtual int pollFd() const = 0;
  // Until the next call pollFd() should not count as readable before so many bytes (at least 1) are
  // there; the end, an error and a full receive buffer count all the same. A wish: streams that
  // cannot say so ignore it. On the thread that reads.
  virtual void wakeAt(std::size_t /*bytes*/) {}

  // As write(), and the peer gets copies of `fds` (1 to kMaxFds) with the first byte. Only Unix
  // sockets can.
  // ETOOMANYREFS: too many descriptors of this user are on their way; until their receivers have
  // read them it is no use to try, though the stream may be writable.
  static constexpr std::size_t kMaxFds = 16;
  virtual IoResult writeWithFds(std::span<iovec> from, std::span<const int> fds);
  // The next descriptor that came with bytes read so far, once; on the thread that reads.
  struct ReceivedFd {
    UniqueFd fd;
    bool lost = false;  // one came, but this process could not take it (too many are open)
  };
  virtual ReceivedFd takeFd() { return {}; }

  virtual const char* transportName() const = 0;  // "tcp" or "unix"
};

class SocketStream final : public Stream {
 public:
  // `fd`: connected, non-blocking.
  SocketStream(UniqueFd fd, const char* transport_name)
      : fd_(std::move(fd)),
        name_(transport_name),
        is_unix_(std::string_view(transport_name) == "unix") {}

  IoResult read(std::span<iovec> into) override;
  IoResult write(std::span<iovec> from) override;
  void finishWriting() override;
  void breakOff() override;
  int pollFd() const override { return fd_.get(); }
  void wakeAt(std::size_t bytes) override;
  IoResult writeWithFds(std::span<iovec> from, std::span<const int> fds) override;
  ReceivedFd takeFd() override;
  const char* transportName() const override { return name_; }

 private:
  void keepFds(const msghdr& message);

  UniqueFd fd_;
  const char* name_;
  const bool is_unix_;
  // The reading thread's: what waits to be taken, oldest first.
  std::deque<UniqueFd> received_;
  bool lost_ = false;
};

}  // namespace weft::transport
