#include "rpc_backend/core/innermost.h"

#include <c10/util/Exception.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "rpc_backend/wire/wrapped_type.h"

namespace weft::rpc {

namespace {

constexpr int kMaxWraps = 4;  // torch wraps twice: profiling around autograd

bool isAutograd(MessageType type) {
  return type == MessageType::FORWARD_AUTOGRAD_REQ || type == MessageType::FORWARD_AUTOGRAD_RESP;
}

bool isProfile(MessageType type) {
  return type == MessageType::RUN_WITH_PROFILING_REQ ||
         type == MessageType::RUN_WITH_PROFILING_RESP;
}

WrappedMessage unwrap(std::span<const char> payload) {
  const auto inner = readWrappedType(payload);
  TORCH_CHECK(inner, "a wrapped message is malformed");
  return *inner;
}

}  // namespace

Innermost innermost(MessageType type, std::span<const char> payload) {
  Innermost found{type, payload, true};
  for (int depth = 0; isAutograd(found.type) || isProfile(found.type); ++depth) {
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

std::optional<std::int64_t> contextIdOf(MessageType type, std::span<const char> payload) {
  if (isProfile(type)) {
    const WrappedMessage inner = unwrap(payload);
    type = static_cast<MessageType>(inner.type);
    payload = inner.inner_payload;
  }
  if (!isAutograd(type) && !isProfile(type)) return std::nullopt;
  const WrappedMessage inner = unwrap(payload);
  const auto inner_type = static_cast<MessageType>(inner.type);
  TORCH_CHECK(isAutograd(type) && !isAutograd(inner_type) && !isProfile(inner_type),
              "a message is wrapped more often than torch wraps one");
  // The wrapper is a tuple of the type, the context and others (rpc_with_autograd.cpp), with its
  // length behind it.
  const std::size_t length = payload.size() - inner.inner_payload.size() - sizeof(std::int64_t);
  const auto tuple = payload.subspan(inner.inner_payload.size(), length);
  const at::IValue value = torch::jit::unpickle(tuple.data(), tuple.size());
  return value.toTupleRef().elements().at(1).toInt();
}

}  // namespace weft::rpc
