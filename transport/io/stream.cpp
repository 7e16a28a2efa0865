#include "transport/io/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/base/check.h"

namespace weft::transport {
namespace {

// Descriptors beside the bytes (SCM_RIGHTS). The kernel closes what a peer sends beyond this room.
union Control {
  cmsghdr head;
  char bytes[CMSG_SPACE(kMaxFds * sizeof(int))];
};

// A frame's descriptors are taken before the next frame is read: more than this wait only when a
// peer sends some that no frame asks for. Those beyond are lost.
constexpr std::size_t kMaxWaiting = 2 * kMaxFds;

}  // namespace

std::uint64_t bytesOf(std::span<const iovec> entries) noexcept {
  std::uint64_t sum = 0;
  for (const iovec& entry : entries)
    sum += entry.iov_len;
  return sum;
}

IoResult SocketStream::read(std::span<iovec> into) {
  Control control;
  while (true) {
    msghdr message{};
    message.msg_iov = into.data();
    message.msg_iovlen = into.size();
    if (accepts_fds_) {
      message.msg_control = &control;
      message.msg_controllen = CMSG_LEN(kMaxFds * sizeof(int));
    }
    const ssize_t got = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0 && accepts_fds_) keepFds(message);
    if (got > 0) {
      bytes_came_.store(bytesCame() + static_cast<std::uint64_t>(got), std::memory_order_relaxed);
      return {static_cast<std::size_t>(got), 0, false};
    }
    if (got == 0) return {0, 0, true};
    if (errno != EINTR) return {0, errno, false};
  }
}

void SocketStream::keepFds(msghdr& message) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= part->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, reinterpret_cast<const char*>(part) + at, sizeof(int));
      UniqueFd one(fd);
      lost_ = lost_ || received_.size() == kMaxWaiting;
      if (!lost_) received_.push_back(std::move(one));
    }
  }
  // The missing descriptors are the last ones.
  if ((message.msg_flags & MSG_CTRUNC) != 0) lost_ = true;
}

Stream::ReceivedFd SocketStream::takeFd() {
  if (received_.empty()) return {UniqueFd(), lost_};
  ReceivedFd oldest{std::move(received_.front()), false};
  received_.pop_front();
  return oldest;
}

IoResult SocketStream::write(std::span<iovec> from, std::span<const int> fds) {
  Control control;
  msghdr message{};
  message.msg_iov = from.data();
  message.msg_iovlen = from.size();
  if (!fds.empty()) {
    if (!is_unix_) return {0, EOPNOTSUPP, false};
    WEFT_CHECK(fds.size() <= kMaxFds, "as many descriptors as go with one write");
    control = {};
    message.msg_control = &control;
    message.msg_controllen = CMSG_LEN(fds.size_bytes());
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(&control.head), fds.data(), fds.size_bytes());
  }
  while (true) {
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return {static_cast<std::size_t>(sent), 0, false};
    if (errno != EINTR) return {0, errno, false};
  }
}

void SocketStream::wakeAt(std::size_t bytes) {
  const auto mark = static_cast<int>(std::clamp<std::size_t>(bytes, 1, kWakePiece));
  // Unix sockets ignore it when they are polled.
  if (is_unix_ || mark == std::exchange(wake_at_, mark)) return;
  static_cast<void>(::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof(mark)));
}

void SocketStream::finishWriting() { ::shutdown(fd_.get(), SHUT_WR); }
void SocketStream::breakOff() { ::shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace weft::transport
