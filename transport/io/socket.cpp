#include "transport/io/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "transport/base/system_error.h"

namespace weft::transport {
namespace {

constexpr int kBacklog = 1024;
// A Unix stream's pipe is its sender's buffer: with the default 208 KiB large messages stop
// and go. The kernel caps this at net.core.wmem_max.
constexpr int kUnixSendBuffer = 2 << 20;
constexpr int kFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family = AF_UNSPEC;
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
};

bool numericAddress(const std::string& host, std::uint16_t port, SocketAddress& out) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, &::freeaddrinfo);
  std::memcpy(&out.storage, found->ai_addr, found->ai_addrlen);
  out.length = found->ai_addrlen;
  out.family = found->ai_family;
  return true;
}

bool abstractAddress(const std::string& name, SocketAddress& out) {
  sockaddr_un address{};
  if (name.size() + 1 > sizeof(address.sun_path)) return false;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  std::memcpy(&out.storage, &address, sizeof(address));
  out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  out.family = AF_UNIX;
  return true;
}

Error bindAndListen(int fd, const SocketAddress& address, const std::string& what) {
  if (::bind(fd, address.get(), address.length) != 0) return systemError("binding " + what, errno);
  if (::listen(fd, kBacklog) != 0) return systemError("listening on " + what, errno);
  return Error::ok();
}

bool isWildcard(const SocketAddress& address) {
  if (address.family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr ==
           htonl(INADDR_ANY);
  }
  return address.family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(
             &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr);
}

std::uint16_t portOf(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return 0;
  return storage.ss_family == AF_INET ? ntohs(reinterpret_cast<sockaddr_in*>(&storage)->sin_port)
                                      : ntohs(reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port);
}

Connecting startConnect(UniqueFd fd, const SocketAddress& address) {
  int status = 0;
  do {
    status = ::connect(fd.get(), address.get(), address.length);
  } while (status != 0 && errno == EINTR);
  const int error = status == 0 ? 0 : errno;
  return {std::move(fd), error};
}

}  // namespace

Result<BoundSocket> listenTcp(const std::string& host) {
  SocketAddress address;
  if (!numericAddress(host, 0, address)) {
    return Error(ErrorCode::kInvalidArgument,
                 "'" + host + "' is not a numeric IPv4 or IPv6 address to listen on");
  }
  if (isWildcard(address)) {
    return Error(ErrorCode::kInvalidArgument,
                 "'" + host +
                     "' would listen on every interface; give the one address by which the other "
                     "workers reach this host");
  }
  BoundSocket bound;
  bound.fd = UniqueFd(::socket(address.family, kFlags, 0));
  if (!bound.fd.valid()) return systemError("making a TCP socket", errno);
  if (Error error = bindAndListen(bound.fd.get(), address, "a TCP port of " + host)) return error;
  bound.port = portOf(bound.fd.get());
  return bound;
}

Result<BoundSocket> listenUnix(const std::string& name) {
  SocketAddress address;
  if (!abstractAddress(name, address))
    return Error(ErrorCode::kInvalidArgument, "the Unix socket's name is too long");
  BoundSocket bound;
  bound.fd = UniqueFd(::socket(AF_UNIX, kFlags, 0));
  if (!bound.fd.valid()) return systemError("making a Unix socket", errno);
  if (Error error = bindAndListen(bound.fd.get(), address, "the Unix socket @" + name))
    return error;
  return bound;
}

Connecting connectTcp(const std::string& host, std::uint16_t port) {
  SocketAddress address;
  if (!numericAddress(host, port, address)) return {UniqueFd(), EINVAL};
  UniqueFd fd(::socket(address.family, kFlags, 0));
  if (!fd.valid()) return {UniqueFd(), errno};
  tuneTcp(fd.get());
  return startConnect(std::move(fd), address);
}

Connecting connectUnix(const std::string& name) {
  SocketAddress address;
  if (!abstractAddress(name, address)) return {UniqueFd(), EINVAL};
  UniqueFd fd(::socket(AF_UNIX, kFlags, 0));
  if (!fd.valid()) return {UniqueFd(), errno};
  tuneUnix(fd.get());
  return startConnect(std::move(fd), address);
}

int connectError(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

// A connection without these options is slower, not wrong.
void tuneTcp(int fd) {
  const int on = 1;
  static_cast<void>(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
}

void tuneUnix(int fd) {
  const int bytes = kUnixSendBuffer;
  static_cast<void>(::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)));
}

}  // namespace weft::transport
