#include "transport/stream.h"

#include <sys/socket.h>

#include <cerrno>

namespace weft::transport {

IoResult SocketStream::read(std::span<iovec> into) {
  msghdr message{};
  message.msg_iov = into.data();
  message.msg_iovlen = into.size();
  while (true) {
    const ssize_t got = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got > 0) return {static_cast<std::size_t>(got), 0, false};
    if (got == 0) return {0, 0, true};
    if (errno != EINTR) return {0, errno, false};
  }
}

IoResult SocketStream::write(std::span<iovec> from) {
  msghdr message{};
  message.msg_iov = from.data();
  message.msg_iovlen = from.size();
  while (true) {
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return {static_cast<std::size_t>(sent), 0, false};
    if (errno != EINTR) return {0, errno, false};
  }
}

void SocketStream::finishWriting() { ::shutdown(fd_.get(), SHUT_WR); }
void SocketStream::breakOff() { ::shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace weft::transport
