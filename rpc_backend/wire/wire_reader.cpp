#include "rpc_backend/wire/wire_reader.h"

#include <algorithm>
#include <cstring>

#include "rpc_backend/wire/wire_bits.h"

namespace weft::rpc {

namespace {

// The longest payload in a header. The loop thread reads it with the header, so it must be short,
// except in control messages, which have no other place for their text.
std::size_t mostInline(WireKind kind) {
  return kind == WireKind::kRequest || kind == WireKind::kResponse ? kInlinePayloadBytes
                                                                   : kMaxControlBytes;
}

}  // namespace

bool WireReader::fail(const char* why) {
  if (error_.empty()) error_ = why;
  return false;
}

template <typename T>
bool WireReader::get(T& value) {
  if (rest_.size() < sizeof(T)) return fail("the header ends early");
  std::memcpy(&value, rest_.data(), sizeof(T));
  rest_ = rest_.subspan(sizeof(T));
  return true;
}

bool WireReader::getVarint(std::uint64_t& value) {
  value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    std::uint8_t byte = 0;
    if (!get(byte)) return false;
    if (shift == 63 && byte > 1) break;
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return true;
  }
  return fail("a number is longer than 64 bits");
}

bool WireReader::getBytes(std::uint64_t count, std::span<const std::byte>& bytes) {
  if (rest_.size() < count) return fail("the header ends early");
  bytes = rest_.first(count);
  rest_ = rest_.subspan(count);
  return true;
}

// Reads the fields of fixed size; `inline_bytes` is what the last of them says of the payload.
bool WireReader::getHead(WireHeader& header, std::uint32_t& inline_bytes) {
  std::uint8_t version = 0;
  std::uint8_t kind = 0;
  if (!get(version)) return false;
  if (version != kWireVersion) return fail("the message format has another version than here");
  if (!get(kind)) return false;
  header.device_memory = (kind & wire_bits::kDeviceMemory) != 0;
  header.staged = (kind & wire_bits::kStaged) != 0;
  kind &= static_cast<std::uint8_t>(~(wire_bits::kDeviceMemory | wire_bits::kStaged));
  if (kind < static_cast<std::uint8_t>(WireKind::kRequest) ||
      kind > static_cast<std::uint8_t>(WireKind::kControlAck)) {
    return fail("the kind of message is unknown");
  }
  header.kind = static_cast<WireKind>(kind);
  if (!get(header.type)) return false;
  if (header.type > kMaxMessageType) return fail("the type of message is unknown");
  return get(header.tensor_count) && get(header.call_id) && get(header.timeout_ms) &&
         get(inline_bytes);
}

bool WireReader::header(WireHeader& header) {
  std::uint32_t inline_bytes = 0;
  if (!getHead(header, inline_bytes)) return false;
  if ((header.device_memory || header.staged) && header.kind != WireKind::kRequest &&
      header.kind != WireKind::kResponse)
    return fail("only requests and responses have tensors of devices");
  device_memory_ = header.device_memory;
  if (header.timeout_ms != 0 && header.kind != WireKind::kRequest)
    return fail("only a request has a timeout");
  // Each tensor takes at least one byte; a larger count would ask for memory in vain.
  if (header.tensor_count > rest_.size()) return fail("more tensors than the header has room for");
  if (header.tensor_count > kMaxTensors)
    return fail("more tensors than a message may have (65536)");
  header.payload_inline = inline_bytes != kNotInline;
  header.payload = {};
  if (header.payload_inline && inline_bytes > mostInline(header.kind))
    return fail("a payload is too long to be in the header");
  return !header.payload_inline || getBytes(inline_bytes, header.payload);
}

bool WireReader::getVarints(std::span<std::int64_t> values) {
  for (std::int64_t& value : values) {
    std::uint64_t read = 0;
    if (!getVarint(read)) return false;
    value = static_cast<std::int64_t>(read);
  }
  return true;
}

bool WireReader::getSizes(TensorMeta& meta) {
  if (!get(meta.ndim)) return false;
  if (meta.ndim > kMaxDims) return fail("a tensor has more than 64 dimensions");
  return getVarints(std::span(meta.sizes).first(meta.ndim));
}

bool WireReader::getShape(TensorMeta& meta, std::size_t item_size, bool contiguous) {
  if (!getSizes(meta)) return false;
  const auto sizes = std::span(meta.sizes).first(meta.ndim);
  const auto strides = std::span(meta.strides).first(meta.ndim);
  if (contiguous) {
    meta.strides = rowMajorStrides(meta.sizes, meta.ndim);
  } else if (!getVarints(strides)) {
    return false;
  }
  const auto layout = layoutOf(sizes, strides, item_size);
  if (!meta.gapped && (!layout || !layout->isDense())) {
    return fail("a tensor's sizes and strides do not describe a dense tensor");
  }
  if (!layout) return fail("a tensor's sizes and strides do not describe a view");
  if (meta.gapped && layout->span > kMaxGappedBytes)
    return fail("the gaps of a view take more memory than they may");
  meta.bytes = layout->elements;
  return true;
}

bool WireReader::getSparse(TensorMeta& meta) {
  if (meta.is_inline || meta.gapped) return fail("a sparse tensor has flags of a dense one");
  if (!get(meta.layout) || !getSizes(meta)) return false;
  const auto sizes = std::span(meta.sizes).first(meta.ndim);
  const bool negative = std::any_of(sizes.begin(), sizes.end(), [](auto size) { return size < 0; });
  return !negative || fail("a sparse tensor's size is negative");
}

bool WireReader::tensor(TensorMeta& meta, std::size_t (*item_size)(std::uint8_t dtype)) {
  std::uint8_t form = 0;
  std::uint8_t flags = 0;
  if (!get(form)) return false;
  if (form > static_cast<std::uint8_t>(TensorForm::kSparse)) {
    return fail("a tensor's form is unknown");
  }
  meta.form = static_cast<TensorForm>(form);
  meta.bytes = 0;
  meta.is_inline = false;
  meta.gapped = false;
  meta.inline_bytes = {};
  if (meta.form == TensorForm::kUndefined) return true;
  if (!get(flags) || !get(meta.device_type) || !get(meta.device_index)) return false;
  if ((flags & ~wire_bits::kKnown) != 0) return fail("a tensor has flags that are unknown");
  meta.requires_grad = (flags & wire_bits::kRequiresGrad) != 0;
  meta.is_inline = (flags & wire_bits::kInline) != 0;
  meta.gapped = (flags & wire_bits::kGapped) != 0;
  meta.coalesced = (flags & wire_bits::kCoalesced) != 0;
  if (hasShape(meta.form)) {
    if (!get(meta.dtype)) return false;
    const std::size_t size = item_size(meta.dtype);
    if (size == 0) return fail("a tensor's element type is unknown");
    if (!getShape(meta, size, (flags & wire_bits::kContiguous) != 0)) return false;
  } else if (meta.form == TensorForm::kSparse) {
    if (!getSparse(meta)) return false;
  } else if (!getVarint(meta.bytes)) {
    return false;
  }
  if (meta.form == TensorForm::kDevice && (meta.is_inline || !device_memory_))
    return fail("a tensor in device memory does not fit its message");
  return !meta.is_inline || getBytes(meta.bytes, meta.inline_bytes);
}

bool WireReader::deviceToken(std::span<const std::byte>& token) {
  std::uint64_t size = 0;
  return getVarint(size) && getBytes(size, token);
}

}  // namespace weft::rpc
