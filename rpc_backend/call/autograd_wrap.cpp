#include "rpc_backend/call/autograd_wrap.h"

#include <c10/util/Exception.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "rpc_backend/wire/wrapped_type.h"

namespace weft::rpc {

namespace {

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
