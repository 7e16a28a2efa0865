#include "transport/peer/check_options.h"

#include <chrono>
#include <utility>

#include "transport/auth/hello.h"
#include "transport/base/peer_name.h"

namespace weft::transport {
Error checkName(const std::string& name) {
  if (name.empty() || name.size() > Hello::kMaxName || name.find('\0') != std::string::npos) {
    return invalidArgument("a worker's name has 1 to 128 bytes, none of them zero; this one has " +
                           std::to_string(name.size()));
  }
  return Error::ok();
}

Error checkOptions(const EndpointOptions& options) {
  if (Error error = checkName(options.name)) return error;
  if (options.rank < 0)
    return invalidArgument("a rank is 0 or more, this one is " + std::to_string(options.rank));
  if (!options.key.valid())
    return invalidArgument(
        "an endpoint needs an authentication key (AuthKey::random() or a key file)");
  if (!options.tcp && !options.unix_socket)
    return invalidArgument("an endpoint needs TCP or Unix sockets, both are switched off");
  const std::chrono::milliseconds zero(0);
  if (options.handshake_timeout <= zero || options.connect_timeout <= zero ||
      options.heartbeat_interval <= zero || options.peer_timeout <= zero ||
      options.reconnect_timeout < zero) {
    return invalidArgument(
        "timeouts and the heartbeat interval must be more than 0 ms (reconnect_timeout may be 0)");
  }
  if (options.peer_timeout < 2 * options.heartbeat_interval) {
    return invalidArgument("peer_timeout (" + seconds(options.peer_timeout) +
                           ") must be at least twice heartbeat_interval (" +
                           seconds(options.heartbeat_interval) +
                           "), else healthy peers would be lost");
  }
  return Error::ok();
}

}  // namespace weft::transport
