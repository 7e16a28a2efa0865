// Who an endpoint is, by its options, and what is wrong with them.
//
// Threads: any.
#pragma once

#include <string>

#include "transport/auth/handshake.h"
#include "transport/base/error.h"
#include "transport/options.h"

namespace weft::transport {

// kInvalidArgument: no worker can have that name.
Error checkName(const std::string& name);
// A new life of the worker. kInvalidArgument says which option is wrong; kSystem: no random
// numbers.
Result<Identity> makeIdentity(const EndpointOptions& options);

}  // namespace weft::transport
