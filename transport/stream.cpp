#include "transport/stream.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace weft::transport {
namespace {

// Room for exactly one descriptor: the kernel closes what a peer sends beyond it.
union OneFd {
  cmsghdr head;
  char bytes[CMSG_SPACE(sizeof(int))];
};

IoResult sendAll(int fd, const msghdr& message) {
  while (true) {
    const ssize_t sent = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return {static_cast<std::size_t>(sent), 0, false};
    if (errno != EINTR) return {0, errno, false};
  }
}

}  // namespace

IoResult Stream::writeWithFd(std::span<iovec>, int) { return {0, EOPNOTSUPP, false}; }

IoResult SocketStream::read(std::span<iovec> into) {
  OneFd control;
  while (true) {
    msghdr message{};
    message.msg_iov = into.data();
    message.msg_iovlen = into.size();
    if (is_unix_) {
      message.msg_control = &control;
      message.msg_controllen = CMSG_LEN(sizeof(int));
    }
    const ssize_t got = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0 && (message.msg_controllen > 0 || (message.msg_flags & MSG_CTRUNC) != 0)) {
      keepFd(message);
    }
    if (got > 0) return {static_cast<std::size_t>(got), 0, false};
    if (got == 0) return {0, 0, true};
    if (errno != EINTR) return {0, errno, false};
  }
}

void SocketStream::keepFd(const msghdr& message) {
  if ((message.msg_flags & MSG_CTRUNC) != 0 && !received_.fd.valid()) received_.lost = true;
  for (const cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(const_cast<msghdr*>(&message), const_cast<cmsghdr*>(part))) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= part->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, reinterpret_cast<const char*>(part) + at, sizeof(int));
      UniqueFd one(fd);
      if (!received_.fd.valid()) received_ = {std::move(one), false};
    }
  }
}

IoResult SocketStream::write(std::span<iovec> from) {
  msghdr message{};
  message.msg_iov = from.data();
  message.msg_iovlen = from.size();
  return sendAll(fd_.get(), message);
}

IoResult SocketStream::writeWithFd(std::span<iovec> from, int fd) {
  if (!is_unix_) return Stream::writeWithFd(from, fd);
  OneFd control{};
  msghdr message{};
  message.msg_iov = from.data();
  message.msg_iovlen = from.size();
  message.msg_control = &control;
  message.msg_controllen = CMSG_LEN(sizeof(int));
  control.head.cmsg_level = SOL_SOCKET;
  control.head.cmsg_type = SCM_RIGHTS;
  control.head.cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(&control.head), &fd, sizeof(int));
  return sendAll(fd_.get(), message);
}

void SocketStream::finishWriting() { ::shutdown(fd_.get(), SHUT_WR); }
void SocketStream::breakOff() { ::shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace weft::transport
