// Stream: a connected byte stream that never blocks. SocketStream is the plain one. Another stream
// may be on top of it (layered_stream.h): CheckedStream, which adds checksums, or TlsStream. The
// session tests have a simulated one.
//
// Threads: read() and write() may be called by two threads at once (one each).
// Ownership: the destructor closes the descriptor, so whoever writes holds a shared_ptr.
// Failure: IoResult::error; the stream stays as it is.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <utility>

#include "transport/base/os/unique_fd.h"

struct msghdr;

namespace weft::transport {

// While more than this is to come of a message, its reader is woken for pieces of this size
// (Stream::wakeAt). Else a sender on the same host would wake it for each 64 KiB, which takes the
// sender longer than filling them.
inline constexpr std::size_t kWakePiece = std::size_t{512} << 10;

// The most entries of one read or write (IOV_MAX), and the most descriptors that go with a write.
inline constexpr std::size_t kIovMax = 1024;
inline constexpr std::size_t kMaxFds = 16;

struct IoResult {
  std::size_t count = 0;  // bytes moved
  int error = 0;          // errno; EAGAIN: nothing moved, try when ready
  bool end = false;       // read only: the peer will send no more
};

std::uint64_t bytesOf(std::span<const iovec> entries) noexcept;

class Stream {
 public:
  virtual ~Stream() = default;
  // A plain socket makes one system call. Another stream may make several, and may have put bytes
  // into `into` that it does not count yet: repeat the read with the same places. The peer gets
  // copies of `fds` (none, or at most kMaxFds over a Unix socket) with the first byte written.
  // ETOOMANYREFS: too many descriptors of this user are on their way; writing succeeds again when
  // their receivers have read them, whether or not the socket is writable now.
  virtual IoResult read(std::span<iovec> into) = 0;
  virtual IoResult write(std::span<iovec> from, std::span<const int> fds) = 0;
  // Ends the writing side; the peer reads the end after what was written.
  virtual void finishWriting() = 0;
  // Breaks both directions at once, also under a thread that is in write().
  virtual void breakOff() = 0;
  virtual int pollFd() const = 0;
  // Until the next call, pollFd() should become readable only when so many bytes (at least 1) are
  // there (kWakePiece where that is less), or at the end, an error or a full receive buffer. A hint
  // that some streams ignore. On the thread that reads.
  virtual void wakeAt(std::size_t /*bytes*/) {}
  // After a read: whether the stream itself holds more bytes, for which pollFd() does not become
  // readable. On the thread that reads.
  virtual bool holdsBytes() const { return false; }

  // Keeps the descriptors that come from now on; the system closes those that came before. Call it
  // once the peer has proved who it is, on the thread that reads: a stranger must not fill this
  // process's table of descriptors.
  virtual void acceptFds() {}
  // The next descriptor that came with bytes read so far, once; on the thread that reads.
  struct ReceivedFd {
    UniqueFd fd;
    // It, or one before it, came when this process could not take it (too many are open). All
    // behind it are lost, too, because none of them says which one it is.
    bool lost = false;
  };
  virtual ReceivedFd takeFd() { return {}; }

  // The bytes that have come from the socket so far, also those that no read() has handed out yet
  // because their record is not whole: the peer's signs of life. Any thread.
  virtual std::uint64_t bytesCame() const noexcept { return 0; }

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
  IoResult write(std::span<iovec> from, std::span<const int> fds) override;
  void finishWriting() override;
  void breakOff() override;
  int pollFd() const override { return fd_.get(); }
  void wakeAt(std::size_t bytes) override;
  void acceptFds() override { accepts_fds_ = is_unix_; }
  ReceivedFd takeFd() override;
  std::uint64_t bytesCame() const noexcept override {
    return bytes_came_.load(std::memory_order_relaxed);
  }
  const char* transportName() const override { return name_; }

 private:
  void keepFds(msghdr& message);

  UniqueFd fd_;
  const char* name_;
  const bool is_unix_;
  std::atomic<std::uint64_t> bytes_came_{0};  // written by the reading thread
  bool accepts_fds_ = false;
  int wake_at_ = 1;  // as the system was told
  // The reading thread's: descriptors that came and wait to be taken, oldest first.
  std::deque<UniqueFd> received_;
  bool lost_ = false;  // what came behind them, and whatever comes
};

}  // namespace weft::transport
