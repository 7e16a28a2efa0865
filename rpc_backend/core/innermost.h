// What is in the messages in which torch wraps a call: once for autograd, and that once for a
// profile.
//
// Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

struct Innermost {
  MessageType type;
  std::span<const char> payload;
  bool recognised;  // false: a wrapper holds no message; type and payload are the wrapper's
};
Innermost innermost(MessageType type, std::span<const char> payload);

// The context of distributed autograd that a request is made in, or that an answer names; nothing:
// there is none. Throws c10::Error for what is wrapped as torch wraps nothing.
//
// torch begins the context that an answer names, whatever the call was: one that nobody has begun
// would never end, and the call's result would have a gradient.
std::optional<std::int64_t> contextIdOf(MessageType type, std::span<const char> payload);

}  // namespace weft::rpc
