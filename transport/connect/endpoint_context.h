// What all parts of one endpoint share. The endpoint owns all of it and outlives the parts.
#pragma once

#include <string>

#include "transport/auth/handshake.h"
#include "transport/endpoint.h"
#include "transport/io/event_loop.h"
#include "transport/io/lazy_event_loop.h"
#include "transport/session/session_numbers.h"

namespace weft::transport {

struct EndpointContext {
  EventLoop& loop;
  const EndpointOptions& options;
  const Identity& self;
  const std::string own_host;  // hostIdentity()
  EndpointHandler& handler;
  // Loop thread.
  SessionNumbers& sessions;
  LazyEventLoop& bulk_loop;  // of all bulk connections
};

}  // namespace weft::transport
