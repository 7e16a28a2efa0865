// The context of distributed autograd that a call is made in, and that its answer names.
//
// torch begins the context that an answer names, whatever the call was: one that nobody has begun
// would never end, and the call's result would have a gradient.
//
// Threads: any. Failure: c10::Error for what is wrapped as torch wraps nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

// What a request or an answer of that type names; nothing: none. torch wraps a message once for
// autograd, and that once for a profile.
std::optional<std::int64_t> contextIdOf(MessageType type, std::span<const char> payload);

}  // namespace weft::rpc
