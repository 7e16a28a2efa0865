#include "rpc_backend/codec/message_parser.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cstring>

#include "rpc_backend/codec/message_codec.h"
#include "rpc_backend/codec/shared_tensor.h"
#include "rpc_backend/codec/sparse_parts.h"

namespace weft::rpc {

using transport::Error;
using transport::ErrorCode;
using transport::OwnedBuffer;

namespace {

Error malformed(const std::string& why) { return {ErrorCode::kProtocol, why}; }

DeviceTensorSpec specOf(const TensorMeta& meta) {
  const auto first = [&](const auto& numbers) {
    return std::vector<std::int64_t>(numbers.begin(), numbers.begin() + meta.ndim);
  };
  std::vector<std::int64_t> strides = first(meta.strides);
  // Elements of a layout with gaps come in row-major order.
  if (meta.gapped) {
    const auto dense = c10::contiguous_strides(first(meta.sizes));
    strides.assign(dense.begin(), dense.end());
  }
  return {first(meta.sizes), std::move(strides), static_cast<c10::ScalarType>(meta.dtype),
          c10::Device(static_cast<c10::DeviceType>(meta.device_type), meta.device_index)};
}

// Memory that nobody has touched: the system gives its pages only when bytes come.
OwnedBuffer unfilled(std::size_t size, transport::WarmPool* pool) {
  OwnedBuffer memory;
  if (pool != nullptr) memory = pool->take(size);
  if (memory.data != nullptr) return {memory.data, size, std::move(memory.owner)};
  const std::shared_ptr<std::byte[]> owner = std::make_unique_for_overwrite<std::byte[]>(size);
  return {owner.get(), size, owner};
}

}  // namespace

MessageParser::MessageParser(std::span<const std::byte> header,
                             std::span<const std::uint64_t> sizes,
                             std::vector<OwnedBuffer>& buffers, transport::WarmPool* pool)
    : reader_(header), sizes_(sizes), buffers_(buffers), pool_(pool) {
  buffers_.resize(sizes_.size());
}

transport::Result<std::shared_ptr<IncomingMessage>> MessageParser::parse() {
  if (Error error = readHead()) return error;
  if (Error error = readPayload()) return error;
  in_->slots_.reserve(head_.tensor_count);
  for (std::uint32_t i = 0; i < head_.tensor_count; ++i)
    if (Error error = readTensor()) return error;
  if (Error error = readStagedByte()) return error;
  if (Error error = readEnd()) return error;
  return in_;
}

Error MessageParser::readHead() {
  if (!reader_.header(head_)) return malformed(reader_.error());
  const bool control = head_.kind == WireKind::kControl || head_.kind == WireKind::kControlAck;
  if (control && (!head_.payload_inline || head_.tensor_count > 0))
    return malformed("a control message is more than a header");
  in_->kind_ = head_.kind;
  in_->type_ = head_.type;
  in_->call_id_ = head_.call_id;
  in_->deadline_ = CallContext::after(std::chrono::milliseconds(head_.timeout_ms));
  return Error::ok();
}

Error MessageParser::readPayload() {
  if (head_.payload_inline) {
    const auto* first = reinterpret_cast<const char*>(head_.payload.data());
    in_->payload_.assign(first, first + head_.payload.size());
    in_->bytes_ = in_->payload_.size();
    return Error::ok();
  }
  if (sizes_.empty()) return malformed("the payload's buffer is missing");
  const std::uint64_t size = sizes_.front();
  in_->bytes_ = size;
  const bool is_here = buffers_.front().data != nullptr;
  in_->shared_payload_ = is_here ? buffers_.front() : unfilled(size, pool_);
  if (!is_here) buffers_.front() = {in_->shared_payload_.data, size, in_};
  ++next_;
  return Error::ok();
}

Error MessageParser::readTensor() {
  TensorMeta meta;
  if (!reader_.tensor(meta, &itemSize)) return malformed(reader_.error());
  if (meta.form != TensorForm::kUndefined &&
      meta.device_type >= c10::COMPILE_TIME_MAX_DEVICE_TYPES) {
    return malformed("a tensor's device type is unknown");
  }
  if (meta.form == TensorForm::kDevice) {
    in_->lent_.push_back(specOf(meta));
    in_->slots_.push_back(makeSlot(meta, {}));
    in_->bytes_ += costOf(meta);
    return Error::ok();
  }
  if (meta.form == TensorForm::kSparse) return readSparse(meta);
  const bool in_buffer = meta.form != TensorForm::kUndefined && !meta.is_inline;
  if (in_buffer && (next_ == sizes_.size() || sizes_[next_] != meta.bytes))
    return malformed("a tensor's size is not its buffer's");
  in_->bytes_ += meta.bytes + costOf(meta);
  if (in_buffer) {
    readBuffer(meta);
  } else {
    in_->slots_.push_back(makeSlot(meta, {}));
  }
  return Error::ok();
}

Error MessageParser::readSparse(const TensorMeta& meta) {
  const auto layout = static_cast<c10::Layout>(meta.layout);
  const std::size_t parts = sparsePartCount(layout);
  if (parts == 0) return malformed("a sparse tensor's layout is unknown");
  auto& slots = in_->slots_;
  const auto isDense = [](const auto& slot) { return slot.form == TensorForm::kDense; };
  if (slots.size() < parts ||
      !std::all_of(slots.end() - static_cast<std::ptrdiff_t>(parts), slots.end(), isDense))
    return malformed("a sparse tensor's parts are missing");
  slots.push_back(makeSlot(meta, {}));
  slots.back().sparse = {
      layout, {meta.sizes.begin(), meta.sizes.begin() + meta.ndim}, meta.coalesced};
  in_->bytes_ += costOf(meta);
  return Error::ok();
}

void MessageParser::readBuffer(const TensorMeta& meta) {
  OwnedBuffer& buffer = buffers_[next_++];
  OwnedBuffer memory = buffer;
  const bool shared = memory.data != nullptr;
  if (!shared && pool_ != nullptr) memory = pool_->take(meta.bytes);
  IncomingMessage::Slot slot = makeSlot(meta, memory);
  slot.shared = shared;
  slot.arrives =
      !shared && meta.form == TensorForm::kDense && meta.bytes > 0 && slot.device.is_cuda();
  if (!shared) buffer = {static_cast<std::byte*>(slot.tensor.mutable_data_ptr()), meta.bytes, in_};
  in_->slots_.push_back(std::move(slot));
}

Error MessageParser::readStagedByte() {
  if (!head_.staged) return Error::ok();
  if (next_ == sizes_.size() || sizes_[next_] != 1)
    return malformed("the byte behind copied tensors is missing");
  OwnedBuffer& buffer = buffers_[next_++];
  if (buffer.data != nullptr) {
    in_->staged_ = buffer;  // in shared memory, which its owner keeps
  } else {
    buffer = {&in_->whole_, 1, in_};
    in_->staged_ = {&in_->whole_, 1, nullptr};
  }
  return Error::ok();
}

Error MessageParser::readEnd() {
  if (next_ != sizes_.size()) return malformed("buffers that no tensor claims");
  std::span<const std::byte> token;
  if (head_.device_memory && !reader_.deviceToken(token)) return malformed(reader_.error());
  in_->token_.assign(token.begin(), token.end());
  if (!reader_.finished()) return malformed("the header is longer than its message");
  return Error::ok();
}

IncomingMessage::Slot MessageParser::makeSlot(const TensorMeta& meta, const OwnedBuffer& memory) {
  IncomingMessage::Slot slot;
  slot.form = meta.form;
  slot.requires_grad = meta.requires_grad;
  if (meta.form == TensorForm::kUndefined) return slot;
  slot.device = c10::Device(static_cast<c10::DeviceType>(meta.device_type), meta.device_index);
  if (meta.gapped) slot.gaps.assign(meta.strides.begin(), meta.strides.begin() + meta.ndim);
  if (meta.form == TensorForm::kDevice || meta.form == TensorForm::kSparse) return slot;
  // A pickle is a row of bytes. Elements of a layout with gaps come in row-major order.
  const bool dense = meta.form == TensorForm::kDense;
  const auto bytes = static_cast<std::int64_t>(meta.bytes);
  const auto dtype = dense ? static_cast<c10::ScalarType>(meta.dtype) : at::kByte;
  const auto sizes = dense ? c10::IntArrayRef(meta.sizes.data(), meta.ndim) : bytes;
  c10::OptionalIntArrayRef strides;
  if (dense && !meta.gapped) strides = c10::IntArrayRef(meta.strides.data(), meta.ndim);
  if (memory.data != nullptr) {
    slot.tensor = tensorOver(memory, sizes, strides, dtype);
    return slot;
  }
  // Not at::empty(), which fills memory where deterministic algorithms are asked for: nothing has
  // come yet, and this is the loop thread.
  slot.tensor = at::Tensor(strides ? at::detail::empty_strided_cpu(sizes, *strides, dtype)
                                   : at::detail::empty_cpu(sizes, dtype));
  if (meta.is_inline && meta.bytes > 0) {
    std::memcpy(slot.tensor.mutable_data_ptr(), meta.inline_bytes.data(), meta.bytes);
  }
  return slot;
}

}  // namespace weft::rpc
