// The text by which peers find an endpoint:
//   weft1;tcp=10.0.0.5:41233;unix=weft-3f2a…;host=<boot id>-<net namespace>
// Unknown keys are skipped, so that later versions can add some.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "transport/base/error.h"

namespace weft::transport {

struct Address {
  static constexpr std::size_t kMaxText = 511;

  std::string tcp_host;  // numeric, without brackets; empty: no TCP
  std::uint16_t tcp_port = 0;
  std::string unix_name;  // name in the abstract namespace; empty: no Unix socket
  std::string host;       // hostIdentity() of the peer

  bool hasTcp() const noexcept { return !tcp_host.empty(); }
  bool hasUnix() const noexcept { return !unix_name.empty(); }
};

std::string formatAddress(const Address& address);
Result<Address> parseAddress(std::string_view text);
std::string formatHostPort(const std::string& host, std::uint16_t port);  // brackets for IPv6

// Which machine and network namespace this process is in: "<boot id>-<inode of the net namespace>",
// empty when it cannot be told. Two processes with equal, nonempty identities reach each other's
// abstract Unix sockets.
std::string hostIdentity();

}  // namespace weft::transport
