// Non-blocking sockets with the settings the transport wants: closed on exec, no Nagle delay,
// large buffers on Unix sockets.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "transport/base/error.h"
#include "transport/base/os/unique_fd.h"

namespace weft::transport {

struct BoundSocket {
  UniqueFd fd;
  std::uint16_t port = 0;  // TCP
};

// `host`: a numeric IPv4 or IPv6 address of this machine, not a wildcard.
Result<BoundSocket> listenTcp(const std::string& host);
// `name`: in the abstract namespace, without the leading zero byte.
Result<BoundSocket> listenUnix(const std::string& name);

struct Connecting {
  UniqueFd fd;
  int error = 0;  // 0: connected; EINPROGRESS: wait until writable, then connectError(); else errno
};

Connecting connectTcp(const std::string& host, std::uint16_t port);
Connecting connectUnix(const std::string& name);
int connectError(int fd);  // how a connect in progress ended

// Whether the process behind one of these addresses of peers still listens. False at once when none
// does, or when nothing answers within `wait`, which begins anew for every 256 addresses. Blocks:
// not for the loop thread.
bool somebodyListens(std::span<const std::string> addresses, std::chrono::milliseconds wait);
inline bool somebodyListens(const std::string& address, std::chrono::milliseconds wait) {
  return somebodyListens(std::span(&address, 1), wait);
}

// The user at the other end of a connected Unix socket, as the kernel recorded it: who dialled,
// when it dialled; who listens, when it began to.
Result<uid_t> peerUser(int fd);
// Ok when that is the calling thread's own user; kAuthFailed names another one.
Error sameUser(int fd);

// Which network a TCP address, or a numeric one, is in: the IPv4 address, or the IPv6 network, for
// within one a host can have any address. 0: it is none.
std::uint64_t networkOf(const sockaddr_storage& address) noexcept;
std::uint64_t networkOf(const std::string& host);

// Whether both ends of a connected TCP socket have the same address: the other end is on this host.
bool sameAddress(int fd);

void tuneTcp(int fd);
void tuneUnix(int fd);

}  // namespace weft::transport
