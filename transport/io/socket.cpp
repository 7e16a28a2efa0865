#include "transport/io/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "transport/base/os/system_error.h"
#include "transport/io/address.h"

namespace weft::transport {
namespace {

constexpr int kBacklog = 1024;
// A Unix stream's pipe is its sender's buffer: with the default 208 KiB large messages stop
// and go. The kernel caps this at net.core.wmem_max.
constexpr int kUnixSendBuffer = 2 << 20;
constexpr std::size_t kAskedAtOnce = 256;  // sockets
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

std::uint16_t portOf(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return 0;
  if (storage.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port);
  return storage.ss_family == AF_INET ? ntohs(reinterpret_cast<sockaddr_in*>(&storage)->sin_port)
                                      : std::uint16_t{0};
}

// `what`: the kind of socket; `where`: what it is bound to.
Result<BoundSocket> listenAt(const SocketAddress& address, const std::string& what,
                             const std::string& where) {
  UniqueFd fd(::socket(address.family, kFlags, 0));
  if (!fd.valid()) return systemError("making a " + what + " socket", errno);
  if (::bind(fd.get(), address.get(), address.length) != 0)
    return systemError("binding " + where, errno);
  if (::listen(fd.get(), kBacklog) != 0) return systemError("listening on " + where, errno);
  const std::uint16_t port = portOf(fd.get());
  return BoundSocket{std::move(fd), port};
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

Connecting startConnect(const SocketAddress& address, void (*tune)(int fd)) {
  UniqueFd fd(::socket(address.family, kFlags, 0));
  if (!fd.valid()) return {UniqueFd(), errno};
  tune(fd.get());
  int status = 0;
  do {
    status = ::connect(fd.get(), address.get(), address.length);
  } while (status != 0 && errno == EINTR);
  const int error = status == 0 ? 0 : errno;
  return {std::move(fd), error};
}

// To the process behind a peer's address.
Connecting connectPeer(const std::string& address) {
  const Result<Address> parsed = parseAddress(address);
  if (!parsed.ok()) return {UniqueFd(), EINVAL};
  const Address& where = parsed.value();
  // The name of a Unix socket is random: unlike a port, nobody else has got it since.
  if (where.hasUnix() && !where.host.empty() && where.host == hostIdentity())
    return connectUnix(where.unix_name);
  if (!where.hasTcp()) return {UniqueFd(), EINVAL};
  return connectTcp(where.tcp_host, where.tcp_port);
}

bool oneListens(std::span<const std::string> addresses, std::chrono::milliseconds wait) {
  using std::chrono::steady_clock;
  const auto end = steady_clock::now() + wait;
  std::vector<UniqueFd> sockets;
  std::vector<pollfd> pending;
  for (const std::string& address : addresses) {
    Connecting made = connectPeer(address);
    if (made.error == 0 || made.error == EAGAIN) return true;  // EAGAIN: its queue is full
    if (made.error != EINPROGRESS) continue;
    pending.push_back({made.fd.get(), POLLOUT, 0});
    sockets.push_back(std::move(made.fd));
  }
  while (!pending.empty()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - steady_clock::now());
    if (left.count() <= 0) return false;
    const int ready = ::poll(pending.data(), pending.size(), static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    for (const pollfd& one : pending) {
      if (one.revents != 0 && connectError(one.fd) == 0) return true;
    }
    std::erase_if(pending, [](const pollfd& one) { return one.revents != 0; });
  }
  return false;
}

}  // namespace

Result<BoundSocket> listenTcp(const std::string& host) {
  SocketAddress address;
  if (!numericAddress(host, 0, address)) {
    return invalidArgument("'" + host + "' is not a numeric IPv4 or IPv6 address to listen on");
  }
  if (isWildcard(address)) {
    return invalidArgument(
        "'" + host +
        "' would listen on every interface; give the one address by which the other "
        "workers reach this host");
  }
  return listenAt(address, "TCP", "a TCP port of " + host);
}

Result<BoundSocket> listenUnix(const std::string& name) {
  SocketAddress address;
  if (!abstractAddress(name, address)) return invalidArgument("the Unix socket's name is too long");
  return listenAt(address, "Unix", "the Unix socket @" + name);
}

Connecting connectTcp(const std::string& host, std::uint16_t port) {
  SocketAddress address;
  if (!numericAddress(host, port, address)) return {UniqueFd(), EINVAL};
  return startConnect(address, tuneTcp);
}

Connecting connectUnix(const std::string& name) {
  SocketAddress address;
  if (!abstractAddress(name, address)) return {UniqueFd(), EINVAL};
  return startConnect(address, tuneUnix);
}

int connectError(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

bool somebodyListens(std::span<const std::string> addresses, std::chrono::milliseconds wait) {
  while (!addresses.empty()) {
    const auto asked = addresses.first(std::min(addresses.size(), kAskedAtOnce));
    if (oneListens(asked, wait)) return true;
    addresses = addresses.subspan(asked.size());
  }
  return false;
}

Result<uid_t> peerUser(int fd) {
  ucred other{};
  socklen_t length = sizeof(other);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &length) != 0)
    return systemError("reading the user at the other end of the socket", errno);
  return other.uid;
}

Error sameUser(int fd) {
  const Result<uid_t> user = peerUser(fd);
  if (!user.ok()) return user.error();
  if (user.value() == ::geteuid()) return Error::ok();
  return {ErrorCode::kAuthFailed, "another user's process (uid " + std::to_string(user.value()) +
                                      ") is at the other end of the socket"};
}

std::uint64_t networkOf(const sockaddr_storage& address) noexcept {
  if (address.ss_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr;
  std::uint64_t network = 0;
  if (address.ss_family == AF_INET6) {
    std::memcpy(&network, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr,
                sizeof(network));
  }
  return network;
}

std::uint64_t networkOf(const std::string& host) {
  SocketAddress address;
  return numericAddress(host, 0, address) ? networkOf(address.storage) : 0;
}

bool sameAddress(int fd) {
  sockaddr_storage own{};
  sockaddr_storage other{};
  socklen_t own_length = sizeof(own);
  socklen_t other_length = sizeof(other);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_length) != 0 ||
      own.ss_family != other.ss_family) {
    return false;
  }
  if (own.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(own).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(other).sin_addr.s_addr;
  }
  return own.ss_family == AF_INET6 &&
         IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6&>(own).sin6_addr,
                            &reinterpret_cast<const sockaddr_in6&>(other).sin6_addr);
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
