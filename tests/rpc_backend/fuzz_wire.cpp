// libFuzzer: the agent's header parser, the reader of wrapped types and the scan of pickles. Any
// bytes; nothing may crash, read out of bounds, or loop for long.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "rpc_backend/wire/pickle_scan.h"
#include "rpc_backend/wire/wire_reader.h"
#include "rpc_backend/wire/wrapped_type.h"

namespace {
std::size_t itemSize(std::uint8_t dtype) { return dtype < 16 ? std::size_t{1} << (dtype % 4) : 0; }
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft::rpc;  // NOLINT(google-build-using-namespace)
  if (size == 0) return 0;
  const bool wrapped = (data[0] & 1) != 0;
  ++data;
  --size;
  if (wrapped) {
    const std::span text(reinterpret_cast<const char*>(data), size);
    faultOf(text, 1);
    const auto found = readWrappedType(text);
    if (found && found->inner_payload.size() >= size) __builtin_trap();
    return 0;
  }
  // The right version: no input may end there.
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), data, size);
  if (size > 0) bytes[0] = std::byte{kWireVersion};
  WireReader reader(bytes);
  WireHeader header;
  if (!reader.header(header)) return 0;
  for (std::uint32_t i = 0; i < header.tensor_count; ++i) {
    TensorMeta meta;
    if (!reader.tensor(meta, &itemSize)) return 0;
    if (meta.is_inline && meta.inline_bytes.size() != meta.bytes) __builtin_trap();
  }
  std::span<const std::byte> token;
  if (header.device_memory && reader.deviceToken(token) && token.size() > size) __builtin_trap();
  return 0;
}
