#include "transport/io/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace weft::transport {
std::uint64_t bytesOf(std::span<const iovec> entries) noexcept {
  std::uint64_t sum = 0;
  for (const iovec& entry : entries)
    sum += entry.iov_len;
  return sum;
}

IoResult Stream::writeWithFds(std::span<iovec>, std::span<const int>) {
  return {0, EOPNOTSUPP, false};
}

IoResult SocketStream::read(std::span<iovec> into) {
  return receiveWithFds(fd_.get(), into, is_unix_ ? &received_ : nullptr);
}

Stream::ReceivedFd SocketStream::takeFd() {
  if (received_.fds.empty()) return {UniqueFd(), std::exchange(received_.lost, false)};
  ReceivedFd oldest{std::move(received_.fds.front()), false};
  received_.fds.pop_front();
  return oldest;
}

IoResult SocketStream::write(std::span<iovec> from) { return sendWithFds(fd_.get(), from, {}); }

IoResult SocketStream::writeWithFds(std::span<iovec> from, std::span<const int> fds) {
  return is_unix_ ? sendWithFds(fd_.get(), from, fds) : Stream::writeWithFds(from, fds);
}

void SocketStream::wakeAt(std::size_t bytes) {
  if (is_unix_) return;  // Unix sockets ignore it when they are polled
  const auto mark = static_cast<int>(std::clamp<std::size_t>(bytes, 1, INT_MAX));
  static_cast<void>(::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof(mark)));
}

void SocketStream::finishWriting() { ::shutdown(fd_.get(), SHUT_WR); }
void SocketStream::breakOff() { ::shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace weft::transport
