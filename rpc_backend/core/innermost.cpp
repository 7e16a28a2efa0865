#include "rpc_backend/core/innermost.h"

#include "rpc_backend/wire/wrapped_type.h"

namespace weft::rpc {

namespace {

constexpr int kMaxWraps = 4;  // torch wraps twice: profiling around autograd

bool wraps(MessageType type) {
  switch (type) {
    case MessageType::FORWARD_AUTOGRAD_REQ:
    case MessageType::FORWARD_AUTOGRAD_RESP:
    case MessageType::RUN_WITH_PROFILING_REQ:
    case MessageType::RUN_WITH_PROFILING_RESP:
      return true;
    default:
      return false;
  }
}

}  // namespace

Innermost innermost(MessageType type, std::span<const char> payload) {
  Innermost found{type, payload, true};
  for (int depth = 0; wraps(found.type); ++depth) {
    const auto inner = depth < kMaxWraps ? readWrappedType(found.payload) : std::nullopt;
    if (!inner) {
      found.recognised = false;
      break;
    }
    found.type = static_cast<MessageType>(inner->type);
    found.payload = inner->inner_payload;
  }
  return found;
}

}  // namespace weft::rpc
