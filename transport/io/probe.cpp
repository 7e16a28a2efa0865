#include "transport/io/probe.h"

#include <poll.h>

#include <cerrno>

#include "transport/io/address.h"
#include "transport/io/host_identity.h"
#include "transport/io/socket.h"

namespace weft::transport {

bool somebodyListens(const std::string& address, std::chrono::milliseconds wait) {
  const Result<Address> parsed = parseAddress(address);
  if (!parsed.ok()) return false;
  const Address& where = parsed.value();
  // The name of a Unix socket is random: unlike a port, nobody else has got it since.
  const bool by_name = where.hasUnix() && !where.host.empty() && where.host == hostIdentity();
  if (!by_name && !where.hasTcp()) return false;
  const Connecting made =
      by_name ? connectUnix(where.unix_name) : connectTcp(where.tcp_host, where.tcp_port);
  if (made.error == 0 || made.error == EAGAIN) return true;  // EAGAIN: its queue is full
  if (made.error != EINPROGRESS) return false;
  pollfd ready{made.fd.get(), POLLOUT, 0};
  return ::poll(&ready, 1, static_cast<int>(wait.count())) == 1 && connectError(made.fd.get()) == 0;
}

}  // namespace weft::transport
