// libFuzzer: an agent's message as the loop thread takes it in: header and buffers of any sizes,
// some of whose bytes are in shared memory already. It is refused before memory is taken, or every
// buffer has memory of its size; then its bytes come, and it goes.
#include <cstring>
#include <vector>

#include "rpc_backend/codec/incoming_message.h"
#include "rpc_backend/wire/wire_writer.h"
#include "tests/support/fuzz_input.h"

namespace {

using namespace weft::rpc;  // NOLINT(google-build-using-namespace)
using weft::testing::FuzzInput;
using weft::testing::require;
using weft::transport::OwnedBuffer;

// As a peer's encoder writes it, nearly.
std::vector<std::byte> header(FuzzInput& input, std::vector<std::uint64_t>& sizes) {
  std::vector<std::byte> bytes;
  WireWriter writer(bytes);
  WireHeader head;
  head.kind = static_cast<WireKind>(input.below(6));
  head.type = input.number() % (kMaxMessageType + 8);
  head.call_id = input.number();
  head.timeout_ms = input.number<std::uint32_t>();
  head.tensor_count =
      static_cast<std::uint32_t>(input.oneIn(16) ? input.number<std::uint32_t>() : input.below(4));
  head.payload_inline = !input.oneIn(4);
  head.device_memory = input.oneIn(4);
  const auto payload = input.bytes(head.payload_inline ? input.below(32) : 0);
  head.payload = payload;
  if (!head.payload_inline) sizes.push_back(input.number());
  writer.header(head);
  for (std::uint32_t i = 0; i < head.tensor_count && i < 4; ++i) {
    TensorMeta meta;
    meta.form = static_cast<TensorForm>(input.below(6));
    meta.layout = static_cast<std::uint8_t>(input.below(8));
    meta.coalesced = input.oneIn(2);
    meta.requires_grad = input.oneIn(2);
    meta.dtype = static_cast<std::uint8_t>(input.oneIn(8) ? input.number() : 6);
    meta.device_type = static_cast<std::uint8_t>(input.oneIn(8) ? input.number() : 0);
    meta.device_index = input.oneIn(8) ? input.number<std::int8_t>() : std::int8_t{-1};
    meta.ndim = static_cast<std::uint8_t>(input.below(4));
    std::int64_t elements = 1;
    for (int d = meta.ndim; d-- > 0;) {
      meta.sizes[d] = static_cast<std::int64_t>(input.oneIn(16) ? input.number<std::uint32_t>()
                                                                : input.below(5));
      meta.strides[d] = input.oneIn(16) ? input.number<std::int32_t>() : elements;
      static_cast<void>(__builtin_mul_overflow(elements, meta.sizes[d], &elements));
    }
    meta.gapped = input.oneIn(8);
    static_cast<void>(
        __builtin_mul_overflow(static_cast<std::uint64_t>(elements), 4U, &meta.bytes));
    if (meta.form == TensorForm::kPickled) meta.bytes = input.below(32);
    if (meta.form == TensorForm::kSparse) meta.bytes = 0;
    meta.is_inline = meta.form != TensorForm::kUndefined && meta.bytes <= 64 && input.oneIn(2);
    static const std::byte zeros[64]{};
    if (meta.is_inline) meta.inline_bytes = std::span(zeros).first(meta.bytes);
    const bool in_buffer = meta.form == TensorForm::kDense || meta.form == TensorForm::kPickled;
    if (!meta.is_inline && in_buffer)
      sizes.push_back(input.oneIn(16) ? input.number<std::uint32_t>() : meta.bytes);
    writer.tensor(meta);
  }
  if (head.device_memory) writer.deviceToken(input.bytes(input.below(8)));
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  std::vector<std::uint64_t> sizes;
  std::vector<std::byte> bytes;
  if (input.oneIn(4)) {
    const auto some = input.bytes(input.number<std::uint16_t>());
    bytes.assign(some.begin(), some.end());
    sizes.assign(input.below(4), input.number());
  } else {
    bytes = header(input, sizes);
    if (input.oneIn(8) && !bytes.empty())
      bytes[input.number() % bytes.size()] = input.number<std::byte>();
    if (input.oneIn(16)) bytes.resize(input.number() % (bytes.size() + 8));
  }
  std::uint64_t total = 0;
  for (const std::uint64_t one : sizes)
    total += one;
  if (total > 1 << 20) return 0;  // the transport's limit on messages
  std::vector<OwnedBuffer> buffers(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (!input.oneIn(8)) continue;
    const std::shared_ptr<std::byte[]> shared(new std::byte[sizes[i] + 64]());
    buffers[i] = {shared.get(), sizes[i], shared};
  }
  const auto in = IncomingMessage::begin(bytes, sizes, buffers);
  if (!in.ok()) return 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    require(buffers[i].size == sizes[i] && (sizes[i] == 0 || buffers[i].data != nullptr));
    if (sizes[i] > 0) std::memset(buffers[i].data, 1, sizes[i]);
  }
  require(in.value()->tensorCount() <= kMaxTensors);
  static_cast<void>(in.value()->text());
  return 0;
}
