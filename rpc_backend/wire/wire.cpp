#include "rpc_backend/wire/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace weft::rpc {

static_assert(std::endian::native == std::endian::little,
              "the wire is little endian; a big-endian host needs byte swaps here");

namespace {

constexpr std::uint8_t kFlagRequiresGrad = 1;
constexpr std::uint8_t kFlagInline = 2;
constexpr std::uint8_t kFlagContiguous = 4;
constexpr std::uint8_t kFlagGapped = 8;
constexpr std::uint8_t kKnownFlags =
    kFlagRequiresGrad | kFlagInline | kFlagContiguous | kFlagGapped;

// Added to the kind.
constexpr std::uint8_t kDeviceMemory = 128;
constexpr std::uint8_t kStaged = 64;

using Strides = std::array<std::int64_t, kMaxDims>;

// Row-major strides as torch gives them: a dimension of size 0 counts as 1.
Strides rowMajor(const TensorMeta& meta) {
  Strides strides{};
  std::uint64_t stride = 1;  // a shape that overflows is refused by layoutOf() only afterwards
  for (std::size_t d = meta.ndim; d-- > 0;) {
    strides[d] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(std::max<std::int64_t>(meta.sizes[d], 1));
  }
  return strides;
}

bool hasShape(TensorForm form) { return form == TensorForm::kDense || form == TensorForm::kDevice; }

bool isContiguous(const TensorMeta& meta) {
  const Strides plain = rowMajor(meta);
  return std::equal(plain.begin(), plain.begin() + meta.ndim, meta.strides.begin());
}

// A longer text would be read where it lies, on the loop thread.
std::size_t mostInline(WireKind kind) {
  return kind == WireKind::kRequest || kind == WireKind::kResponse ? kInlinePayloadBytes
                                                                   : kMaxControlBytes;
}

}  // namespace

std::uint64_t costOf(const TensorMeta& meta) noexcept {
  return kTensorCost + (hasShape(meta.form) ? kDimensionCost * meta.ndim : 0);
}

template <typename T>
void WireWriter::put(T value) {
  const std::size_t at = out_.size();
  out_.resize(at + sizeof(T));
  std::memcpy(out_.data() + at, &value, sizeof(T));
}

void WireWriter::putVarint(std::uint64_t value) {
  while (value >= 0x80) {
    out_.push_back(static_cast<std::byte>(value | 0x80));
    value >>= 7;
  }
  out_.push_back(static_cast<std::byte>(value));
}

void WireWriter::putBytes(std::span<const std::byte> bytes) {
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

void WireWriter::header(const WireHeader& header) {
  put(kWireVersion);
  put(static_cast<std::uint8_t>(static_cast<std::uint8_t>(header.kind) |
                                (header.device_memory ? kDeviceMemory : 0) |
                                (header.staged ? kStaged : 0)));
  put(header.type);
  put(header.tensor_count);
  put(header.call_id);
  put(header.timeout_ms);
  put(header.payload_inline ? static_cast<std::uint32_t>(header.payload.size()) : kNotInline);
  if (header.payload_inline) putBytes(header.payload);
}

void WireWriter::tensor(const TensorMeta& meta) {
  put(static_cast<std::uint8_t>(meta.form));
  if (meta.form == TensorForm::kUndefined) return;
  const bool contiguous = hasShape(meta.form) && isContiguous(meta);
  std::uint8_t flags = 0;
  if (meta.requires_grad) flags |= kFlagRequiresGrad;
  if (meta.is_inline) flags |= kFlagInline;
  if (contiguous) flags |= kFlagContiguous;
  if (meta.gapped) flags |= kFlagGapped;
  put(flags);
  put(meta.device_type);
  put(meta.device_index);
  if (hasShape(meta.form)) {
    put(meta.dtype);
    put(meta.ndim);
    for (std::size_t d = 0; d < meta.ndim; ++d)
      putVarint(static_cast<std::uint64_t>(meta.sizes[d]));
    for (std::size_t d = 0; d < meta.ndim && !contiguous; ++d)
      putVarint(static_cast<std::uint64_t>(meta.strides[d]));
  } else {
    putVarint(meta.bytes);
  }
  if (meta.is_inline) putBytes(meta.inline_bytes);
}

void WireWriter::deviceToken(std::span<const std::byte> token) {
  putVarint(token.size());
  putBytes(token);
}

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

bool WireReader::header(WireHeader& header) {
  std::uint8_t version = 0;
  std::uint8_t kind = 0;
  std::uint32_t inline_bytes = 0;
  if (!get(version)) return false;
  if (version != kWireVersion) return fail("the message format's version is not ours");
  if (!get(kind)) return false;
  header.device_memory = (kind & kDeviceMemory) != 0;
  header.staged = (kind & kStaged) != 0;
  kind &= static_cast<std::uint8_t>(~(kDeviceMemory | kStaged));
  if (kind < static_cast<std::uint8_t>(WireKind::kRequest) ||
      kind > static_cast<std::uint8_t>(WireKind::kControlAck)) {
    return fail("the kind of message is unknown");
  }
  header.kind = static_cast<WireKind>(kind);
  if (!get(header.type) || !get(header.tensor_count) || !get(header.call_id) ||
      !get(header.timeout_ms) || !get(inline_bytes)) {
    return false;
  }
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

bool WireReader::shape(TensorMeta& meta, std::size_t item_size, bool contiguous) {
  const auto sizes = std::span(meta.sizes).first(meta.ndim);
  const auto strides = std::span(meta.strides).first(meta.ndim);
  if (!getVarints(sizes)) return false;
  if (contiguous) {
    meta.strides = rowMajor(meta);
  } else if (!getVarints(strides)) {
    return false;
  }
  const auto layout = layoutOf(sizes, strides, item_size);
  if (!meta.gapped && (!layout || !layout->isDense())) {
    return fail("a tensor's sizes and strides do not describe a dense tensor");
  }
  if (!layout) return fail("a tensor's sizes and strides do not describe a view");
  if (!gaps_.admits(*layout)) return fail("the gaps of a view take more memory than they may");
  meta.bytes = layout->elements;
  return true;
}

bool WireReader::tensor(TensorMeta& meta, std::size_t (*item_size)(std::uint8_t dtype)) {
  std::uint8_t form = 0;
  std::uint8_t flags = 0;
  if (!get(form)) return false;
  if (form > static_cast<std::uint8_t>(TensorForm::kDevice)) {
    return fail("a tensor's form is unknown");
  }
  meta.form = static_cast<TensorForm>(form);
  meta.bytes = 0;
  meta.is_inline = false;
  meta.inline_bytes = {};
  if (meta.form == TensorForm::kUndefined) return true;
  if (!get(flags) || !get(meta.device_type) || !get(meta.device_index)) return false;
  if ((flags & ~kKnownFlags) != 0) return fail("a tensor has flags that are unknown");
  meta.requires_grad = (flags & kFlagRequiresGrad) != 0;
  meta.is_inline = (flags & kFlagInline) != 0;
  meta.gapped = (flags & kFlagGapped) != 0;
  if (hasShape(meta.form)) {
    if (!get(meta.dtype) || !get(meta.ndim)) return false;
    const std::size_t size = item_size(meta.dtype);
    if (size == 0) return fail("a tensor's element type is unknown");
    if (meta.ndim > kMaxDims) return fail("a tensor has more than 64 dimensions");
    if (!shape(meta, size, (flags & kFlagContiguous) != 0)) return false;
  } else if (!getVarint(meta.bytes)) {
    return false;
  }
  if (meta.form == TensorForm::kDevice && (meta.is_inline || !device_memory_))
    return fail("a tensor in device memory belies its message");
  return !meta.is_inline || getBytes(meta.bytes, meta.inline_bytes);
}

bool WireReader::deviceToken(std::span<const std::byte>& token) {
  std::uint64_t size = 0;
  return getVarint(size) && getBytes(size, token);
}

}  // namespace weft::rpc
