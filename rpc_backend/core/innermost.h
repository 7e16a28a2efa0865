// The message inside those in which torch wraps a call for autograd and for a profile.
//
// Any thread.
#pragma once

#include <span>

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

struct Innermost {
  MessageType type;
  std::span<const char> payload;
  bool recognised;  // false: a wrapper holds no message; type and payload are the wrapper's
};
Innermost innermost(MessageType type, std::span<const char> payload);

}  // namespace weft::rpc
