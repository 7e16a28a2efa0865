#include "transport/peer/endpoint_identity.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "transport/base/os/secure_random.h"
#include "transport/base/peer_name.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

Error checkOptions(const EndpointOptions& options) {
  if (Error error = checkName(options.name)) return error;
  if (options.rank < 0)
    return invalidArgument("rank must not be negative, got " + std::to_string(options.rank));
  if (!options.key.valid())
    return invalidArgument(
        "an endpoint needs an authentication key (AuthKey::random() or a key file)");
  if (!options.tcp && !options.unix_socket)
    return invalidArgument("an endpoint needs TCP or Unix sockets, and both are switched off");
  const milliseconds zero(0);
  if (options.handshake_timeout <= zero || options.connect_timeout <= zero ||
      options.heartbeat_interval <= zero || options.peer_timeout <= zero ||
      options.reconnect_timeout < zero) {
    return invalidArgument(
        "timeouts and heartbeat_interval must be positive (reconnect_timeout may be 0)");
  }
  if (options.peer_timeout < 2 * options.heartbeat_interval) {
    return invalidArgument("peer_timeout (" + seconds(options.peer_timeout) +
                           ") must be at least twice heartbeat_interval (" +
                           seconds(options.heartbeat_interval) +
                           "): a peer must not be declared lost for one heartbeat that came late");
  }
  return Error::ok();
}

// Null: the endpoint never encrypts.
Result<std::shared_ptr<const TlsContext>> openTls(const EndpointOptions& options) {
  if (options.encryption == Encryption::kOff) return std::shared_ptr<const TlsContext>();
  if (!options.certificates.any()) return TlsContext::withKey();
  Result<std::shared_ptr<const TlsContext>> tls =
      TlsContext::withCertificates(options.certificates);
  if (!tls.ok() || tls.value()->isFor(options.name)) return tls;
  return invalidArgument("the certificate of WEFT_TLS_CERT, '" + options.certificates.certificate +
                         "', is not for this worker's name, '" + options.name +
                         "'; the name must be among its DNS names, or be its common name");
}

}  // namespace

Error checkName(const std::string& name) {
  if (isWorkerName(name)) return Error::ok();
  return invalidArgument(
      "a worker's name must have 1 to 128 bytes, no control character among them");
}

Result<Identity> makeIdentity(const EndpointOptions& options) {
  if (Error error = checkOptions(options)) return error;
  Identity self;
  self.name = options.name;
  self.rank = options.rank;
  self.group = sha256(options.group_id);
  self.key = options.key;
  Result<std::shared_ptr<const TlsContext>> tls = openTls(options);
  if (!tls.ok()) return tls.error();
  self.tls = std::move(tls).value();
  std::array<std::uint8_t, sizeof(self.incarnation)> random{};
  if (Error error = fillRandom(random)) return error;
  std::memcpy(&self.incarnation, random.data(), random.size());
  return self;
}

}  // namespace weft::transport
