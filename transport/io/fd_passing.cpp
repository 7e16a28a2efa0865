#include "transport/io/fd_passing.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/base/check.h"

namespace weft::transport {
namespace {

// The kernel closes what a peer sends beyond this room.
union Control {
  cmsghdr head;
  char bytes[CMSG_SPACE(kMaxFds * sizeof(int))];
};

// A frame's descriptors are taken before the next frame is read: more than this wait only when a
// peer sends some that no frame asks for.
constexpr std::size_t kMaxWaiting = 2 * kMaxFds;

void keep(const msghdr& message, ReceivedFds& received) {
  for (const cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(const_cast<msghdr*>(&message), const_cast<cmsghdr*>(part))) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= part->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, reinterpret_cast<const char*>(part) + at, sizeof(int));
      UniqueFd one(fd);
      if (received.fds.size() < kMaxWaiting) received.fds.push_back(std::move(one));
    }
  }
  // Those that are missing are the last ones.
  if ((message.msg_flags & MSG_CTRUNC) != 0) received.lost = true;
}

}  // namespace

IoResult sendWithFds(int socket, std::span<iovec> from, std::span<const int> fds) noexcept {
  Control control;
  msghdr message{};
  message.msg_iov = from.data();
  message.msg_iovlen = from.size();
  if (!fds.empty()) {
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
    const ssize_t sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return {static_cast<std::size_t>(sent), 0, false};
    if (errno != EINTR) return {0, errno, false};
  }
}

IoResult receiveWithFds(int socket, std::span<iovec> into, ReceivedFds* received) {
  Control control;
  while (true) {
    msghdr message{};
    message.msg_iov = into.data();
    message.msg_iovlen = into.size();
    if (received != nullptr) {
      message.msg_control = &control;
      message.msg_controllen = CMSG_LEN(kMaxFds * sizeof(int));
    }
    const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const bool came = message.msg_controllen > 0 || (message.msg_flags & MSG_CTRUNC) != 0;
    if (got >= 0 && received != nullptr && came) keep(message, *received);
    if (got > 0) return {static_cast<std::size_t>(got), 0, false};
    if (got == 0) return {0, 0, true};
    if (errno != EINTR) return {0, errno, false};
  }
}

}  // namespace weft::transport
