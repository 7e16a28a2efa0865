#include "rpc_backend/wire/wire_writer.h"

#include <algorithm>
#include <cstring>

#include "rpc_backend/wire/wire_bits.h"

namespace weft::rpc {

namespace {

bool isContiguous(const TensorMeta& meta) {
  const Dimensions plain = rowMajorStrides(meta.sizes, meta.ndim);
  return std::equal(plain.begin(), plain.begin() + meta.ndim, meta.strides.begin());
}

}  // namespace

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

void WireWriter::putSizes(const TensorMeta& meta) {
  put(meta.ndim);
  for (std::size_t d = 0; d < meta.ndim; ++d)
    putVarint(static_cast<std::uint64_t>(meta.sizes[d]));
}

void WireWriter::header(const WireHeader& header) {
  put(kWireVersion);
  put(static_cast<std::uint8_t>(static_cast<std::uint8_t>(header.kind) |
                                (header.device_memory ? wire_bits::kDeviceMemory : 0) |
                                (header.staged ? wire_bits::kStaged : 0)));
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
  if (meta.requires_grad) flags |= wire_bits::kRequiresGrad;
  if (meta.is_inline) flags |= wire_bits::kInline;
  if (contiguous) flags |= wire_bits::kContiguous;
  if (meta.gapped) flags |= wire_bits::kGapped;
  if (meta.coalesced) flags |= wire_bits::kCoalesced;
  put(flags);
  put(meta.device_type);
  put(meta.device_index);
  if (hasShape(meta.form)) {
    put(meta.dtype);
    putSizes(meta);
    for (std::size_t d = 0; d < meta.ndim && !contiguous; ++d)
      putVarint(static_cast<std::uint64_t>(meta.strides[d]));
  } else if (meta.form == TensorForm::kSparse) {
    put(meta.layout);
    putSizes(meta);
  } else {
    putVarint(meta.bytes);
  }
  if (meta.is_inline) putBytes(meta.inline_bytes);
}

void WireWriter::deviceToken(std::span<const std::byte> token) {
  putVarint(token.size());
  putBytes(token);
}

}  // namespace weft::rpc
