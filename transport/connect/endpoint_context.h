// What all parts of one endpoint share. The endpoint owns all of it and outlives the parts.
#pragma once

#include <memory>
#include <string>

#include "transport/auth/handshake.h"
#include "transport/base/os/spare_descriptor.h"
#include "transport/endpoint.h"
#include "transport/io/event_loop.h"
#include "transport/io/socket.h"
#include "transport/session/session.h"

namespace weft::transport {

struct EndpointContext {
  EventLoop& loop;
  const EndpointOptions& options;
  const Identity& self;
  const std::string own_host;  // hostIdentity()
  EndpointHandler& handler;
  // Loop thread.
  SessionNumbers& sessions;
  std::unique_ptr<EventLoop>& bulk_loop;  // of all bulk connections; null until the first one
  SpareDescriptor& spare;
};

// What this endpoint says of encryption on a connection.
inline EncryptionTerms encryptionTerms(const EndpointContext& context, int fd, bool tcp) {
  const bool certificates = context.self.tls != nullptr && context.self.tls->certificates();
  return termsFor(context.options.encryption, certificates, tcp, tcp && sameAddress(fd));
}

}  // namespace weft::transport
