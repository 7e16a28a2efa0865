#include "rpc_backend/wire/wrapped_type.h"

#include "rpc_backend/wire/pickle_scan.h"
#include "rpc_backend/wire/wire.h"

namespace weft::rpc {

std::optional<WrappedMessage> readWrappedType(std::span<const char> payload) {
  constexpr std::size_t kLength = 8;
  if (payload.size() <= kLength) return std::nullopt;
  std::uint64_t length = 0;
  for (std::size_t i = payload.size() - kLength; i < payload.size(); ++i) {
    length = length << 8 | static_cast<unsigned char>(payload[i]);  // big endian
  }
  const std::size_t body = payload.size() - kLength;
  if (length == 0 || length >= body) return std::nullopt;
  const std::size_t inner = body - length;
  const auto type = headOf(payload.subspan(inner, length));
  if (!type || *type < 0 || *type > kMaxMessageType) return std::nullopt;
  return WrappedMessage{static_cast<std::uint16_t>(*type), payload.first(inner)};
}

}  // namespace weft::rpc
