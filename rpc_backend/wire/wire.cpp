#include "rpc_backend/wire/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

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

// Row-major strides as torch gives them: a dimension of size 0 counts as 1.
std::int64_t nextStride(std::int64_t stride, std::int64_t size) {
  // Unsigned, because a shape that overflows is refused by denseBytes() only afterwards.
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(stride) *
                                   static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)));
}

void fillContiguous(TensorMeta& meta) {
  std::int64_t stride = 1;
  for (std::size_t d = meta.ndim; d-- > 0;) {
    meta.strides[d] = stride;
    stride = nextStride(stride, meta.sizes[d]);
  }
}

bool isContiguous(const TensorMeta& meta) {
  std::int64_t stride = 1;
  for (std::size_t d = meta.ndim; d-- > 0;) {
    if (meta.strides[d] != stride) return false;
    stride = nextStride(stride, meta.sizes[d]);
  }
  return true;
}

}  // namespace

std::optional<std::uint64_t> denseBytes(std::span<const std::int64_t> sizes,
                                        std::span<const std::int64_t> strides,
                                        std::size_t item_size) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t elements = 1;
  bool empty = false;
  for (const std::int64_t size : sizes) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
      continue;
    }
    const auto count = static_cast<std::uint64_t>(size);
    if (elements > kMax / count) return std::nullopt;
    elements *= count;
  }
  if (item_size == 0 || elements > kMax / item_size) return std::nullopt;
  if (empty) {
    return std::all_of(strides.begin(), strides.end(), [](std::int64_t s) { return s >= 0; })
               ? std::optional<std::uint64_t>(0)
               : std::nullopt;
  }
  // Gapless: ordered by stride, each stride is the product of the smaller dimensions.
  std::array<std::size_t, kMaxDims> order{};
  std::size_t used = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (strides[d] < 0) return std::nullopt;
    if (sizes[d] != 1) order[used++] = d;
  }
  std::sort(order.begin(), order.begin() + used,
            [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  std::uint64_t expected = 1;
  for (std::size_t i = 0; i < used; ++i) {
    if (static_cast<std::uint64_t>(strides[order[i]]) != expected) return std::nullopt;
    expected *= static_cast<std::uint64_t>(sizes[order[i]]);
  }
  return elements * item_size;
}

std::optional<std::uint64_t> gappedSpan(std::span<const std::int64_t> sizes,
                                        std::span<const std::int64_t> strides,
                                        std::size_t item_size) {
  std::array<std::size_t, kMaxDims> order{};
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] <= 0 || strides[d] <= 0) return std::nullopt;
    order[d] = d;
  }
  std::sort(order.begin(), order.begin() + sizes.size(),
            [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  std::uint64_t span = 1;  // elements covered so far
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto size = static_cast<std::uint64_t>(sizes[order[i]]);
    const auto stride = static_cast<std::uint64_t>(strides[order[i]]);
    if (size > 1 && stride < span) return std::nullopt;  // it would overlap what is inside
    std::uint64_t reach = 0;
    if (__builtin_mul_overflow(size - 1, stride, &reach)) return std::nullopt;
    if (__builtin_add_overflow(span, reach, &span)) return std::nullopt;
  }
  std::uint64_t bytes = 0;
  if (item_size == 0 || __builtin_mul_overflow(span, item_size, &bytes)) return std::nullopt;
  return bytes;
}

bool worthKeepingGaps(std::uint64_t span_bytes, std::uint64_t element_bytes) {
  constexpr std::uint64_t kSmall = 8192;
  return span_bytes <= kSmall || span_bytes / 2 <= element_bytes;
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
  put(static_cast<std::uint8_t>(header.kind));
  put(header.type);
  put(header.tensor_count);
  put(header.call_id);
  put(header.payload_inline ? static_cast<std::uint32_t>(header.payload.size()) : kNotInline);
  if (header.payload_inline) putBytes(header.payload);
}

void WireWriter::tensor(const TensorMeta& meta) {
  put(static_cast<std::uint8_t>(meta.form));
  if (meta.form == TensorForm::kUndefined) return;
  const bool contiguous = meta.form == TensorForm::kDense && isContiguous(meta);
  std::uint8_t flags = 0;
  if (meta.requires_grad) flags |= kFlagRequiresGrad;
  if (meta.is_inline) flags |= kFlagInline;
  if (contiguous) flags |= kFlagContiguous;
  if (meta.gapped) flags |= kFlagGapped;
  put(flags);
  put(meta.device_type);
  put(meta.device_index);
  if (meta.form == TensorForm::kDense) {
    put(meta.dtype);
    put(meta.ndim);
    for (std::size_t d = 0; d < meta.ndim; ++d)
      putVarint(static_cast<std::uint64_t>(meta.sizes[d]));
    if (!contiguous) {
      for (std::size_t d = 0; d < meta.ndim; ++d) {
        putVarint(static_cast<std::uint64_t>(meta.strides[d]));
      }
    }
  } else {
    putVarint(meta.bytes);
  }
  if (meta.is_inline) putBytes(meta.inline_bytes);
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
  if (kind < static_cast<std::uint8_t>(WireKind::kRequest) ||
      kind > static_cast<std::uint8_t>(WireKind::kControlAck)) {
    return fail("the kind of message is unknown");
  }
  header.kind = static_cast<WireKind>(kind);
  if (!get(header.type) || !get(header.tensor_count) || !get(header.call_id) ||
      !get(inline_bytes)) {
    return false;
  }
  // Each tensor takes at least one byte: a count beyond that is a lie about memory.
  if (header.tensor_count > rest_.size()) return fail("more tensors than the header has room for");
  header.payload_inline = inline_bytes != kNotInline;
  header.payload = {};
  return !header.payload_inline || getBytes(inline_bytes, header.payload);
}

bool WireReader::shape(TensorMeta& meta, std::size_t item_size, bool contiguous) {
  for (std::size_t d = 0; d < meta.ndim; ++d) {
    std::uint64_t size = 0;
    if (!getVarint(size)) return false;
    meta.sizes[d] = static_cast<std::int64_t>(size);
  }
  if (contiguous) {
    fillContiguous(meta);
  } else {
    for (std::size_t d = 0; d < meta.ndim; ++d) {
      std::uint64_t stride = 0;
      if (!getVarint(stride)) return false;
      meta.strides[d] = static_cast<std::int64_t>(stride);
    }
  }
  const auto sizes = std::span(meta.sizes).first(meta.ndim);
  const auto strides = std::span(meta.strides).first(meta.ndim);
  if (meta.gapped) {
    TensorMeta packed = meta;
    fillContiguous(packed);
    const auto bytes = denseBytes(sizes, std::span(packed.strides).first(meta.ndim), item_size);
    const auto span = gappedSpan(sizes, strides, item_size);
    if (!bytes || !span || !worthKeepingGaps(*span, *bytes)) {
      return fail("a tensor's sizes and strides do not describe a view");
    }
    meta.bytes = *bytes;
    return true;
  }
  const auto bytes = denseBytes(sizes, strides, item_size);
  if (!bytes) return fail("a tensor's sizes and strides do not describe a dense tensor");
  meta.bytes = *bytes;
  return true;
}

bool WireReader::tensor(TensorMeta& meta, std::size_t (*item_size)(std::uint8_t dtype)) {
  std::uint8_t form = 0;
  std::uint8_t flags = 0;
  if (!get(form)) return false;
  if (form > static_cast<std::uint8_t>(TensorForm::kPickled)) {
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
  if (meta.form == TensorForm::kDense) {
    if (!get(meta.dtype) || !get(meta.ndim)) return false;
    const std::size_t size = item_size(meta.dtype);
    if (size == 0) return fail("a tensor's element type is unknown");
    if (meta.ndim > kMaxDims) return fail("a tensor has more than 64 dimensions");
    if (!shape(meta, size, (flags & kFlagContiguous) != 0)) return false;
  } else if (!getVarint(meta.bytes)) {
    return false;
  }
  return !meta.is_inline || getBytes(meta.bytes, meta.inline_bytes);
}

}  // namespace weft::rpc
