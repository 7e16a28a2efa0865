#include "rpc_backend/codec/incoming_message.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/strides.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <cstring>

#include "rpc_backend/codec/message_codec.h"
#include "rpc_backend/codec/pickled_tensor.h"
#include "rpc_backend/codec/shared_tensor.h"
#include "rpc_backend/devices/device_copy.h"
#include "transport/memory/exported_block.h"

namespace weft::rpc {

using transport::Error;
using transport::ErrorCode;
using transport::OwnedBuffer;

const std::vector<char>& IncomingMessage::payload() const {
  if (shared_payload_.data != nullptr) {
    // The sender must not change bytes in shared memory while they are parsed.
    const auto* first = reinterpret_cast<const char*>(shared_payload_.data);
    payload_.assign(first, first + shared_payload_.size);
    shared_payload_ = {};
  }
  return payload_;
}

IncomingMessage::Slot IncomingMessage::makeSlot(const TensorMeta& meta, const OwnedBuffer& memory) {
  Slot slot;
  slot.form = meta.form;
  slot.requires_grad = meta.requires_grad;
  if (meta.form == TensorForm::kUndefined) return slot;
  slot.device = c10::Device(static_cast<c10::DeviceType>(meta.device_type), meta.device_index);
  if (meta.gapped) slot.gaps.assign(meta.strides.begin(), meta.strides.begin() + meta.ndim);
  if (meta.form == TensorForm::kDevice) return slot;
  // A pickle is a row of bytes; elements of a layout with gaps come in row-major order.
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

transport::Result<std::shared_ptr<IncomingMessage>> IncomingMessage::begin(
    std::span<const std::byte> header, std::span<const std::uint64_t> sizes,
    std::vector<OwnedBuffer>& buffers, transport::WarmPool* pool) {
  try {
    return parse(header, sizes, buffers, pool);
  } catch (const std::exception&) {
    // The loop thread must not throw. c10::Error: no memory for a tensor.
    std::uint64_t bytes = 0;
    for (const std::uint64_t size : sizes)
      bytes += size;
    return Error(ErrorCode::kLimitExceeded,
                 transport::resourceExhausted("there is no memory for the " +
                                              std::to_string(bytes) + " bytes of a message"));
  }
}

namespace {
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

// Memory that nobody has touched, so that it is the machine's until bytes come.
OwnedBuffer unfilled(std::size_t size, transport::WarmPool* pool) {
  OwnedBuffer memory;
  if (pool != nullptr) memory = pool->take(size);
  if (memory.data != nullptr) return {memory.data, size, std::move(memory.owner)};
  const std::shared_ptr<std::byte[]> owner = std::make_unique_for_overwrite<std::byte[]>(size);
  return {owner.get(), size, owner};
}
}  // namespace

transport::Result<std::shared_ptr<IncomingMessage>> IncomingMessage::parse(
    std::span<const std::byte> header, std::span<const std::uint64_t> sizes,
    std::vector<OwnedBuffer>& buffers, transport::WarmPool* pool) {
  WireReader reader(header);
  WireHeader head;
  if (!reader.header(head)) return Error(ErrorCode::kProtocol, reader.error());
  const bool control = head.kind == WireKind::kControl || head.kind == WireKind::kControlAck;
  if (control && (!head.payload_inline || head.tensor_count > 0))
    return Error(ErrorCode::kProtocol, "a control message is more than a header");
  buffers.resize(sizes.size());
  std::shared_ptr<IncomingMessage> in(new IncomingMessage());
  in->kind_ = head.kind;
  in->type_ = head.type;
  in->call_id_ = head.call_id;
  in->deadline_ = CallContext::after(std::chrono::milliseconds(head.timeout_ms));
  std::size_t next = 0;  // of the buffers
  if (head.payload_inline) {
    const auto* first = reinterpret_cast<const char*>(head.payload.data());
    in->payload_.assign(first, first + head.payload.size());
    in->bytes_ = in->payload_.size();
  } else {
    if (sizes.empty()) return Error(ErrorCode::kProtocol, "the payload's buffer is missing");
    in->bytes_ = sizes.front();
    const bool is_here = buffers.front().data != nullptr;
    in->shared_payload_ = is_here ? buffers.front() : unfilled(sizes.front(), pool);
    if (!is_here) buffers.front() = {in->shared_payload_.data, sizes.front(), in};
    ++next;
  }
  in->slots_.reserve(head.tensor_count);
  for (std::uint32_t i = 0; i < head.tensor_count; ++i) {
    TensorMeta meta;
    if (!reader.tensor(meta, &itemSize)) return Error(ErrorCode::kProtocol, reader.error());
    if (meta.form == TensorForm::kDevice) {
      in->lent_.push_back(specOf(meta));
      in->slots_.push_back(makeSlot(meta, {}));
      in->bytes_ += costOf(meta);
      continue;
    }
    const bool in_buffer = meta.form != TensorForm::kUndefined && !meta.is_inline;
    if (in_buffer && (next == sizes.size() || sizes[next] != meta.bytes)) {
      return Error(ErrorCode::kProtocol, "a tensor's size is not its buffer's");
    }
    if (meta.form != TensorForm::kUndefined &&
        meta.device_type >= c10::COMPILE_TIME_MAX_DEVICE_TYPES) {
      return Error(ErrorCode::kProtocol, "a tensor's device type is unknown");
    }
    OwnedBuffer memory;
    if (in_buffer) memory = buffers[next];
    const bool shared = memory.data != nullptr;
    if (in_buffer && !shared && pool != nullptr) memory = pool->take(meta.bytes);
    in->slots_.push_back(makeSlot(meta, memory));
    in->slots_.back().shared = shared;
    in->slots_.back().arrives = in_buffer && !shared && meta.form == TensorForm::kDense &&
                                meta.bytes > 0 && in->slots_.back().device.is_cuda();
    in->bytes_ += meta.bytes + costOf(meta);
    if (!in_buffer) continue;
    if (!shared) {
      const at::Tensor& tensor = in->slots_.back().tensor;
      buffers[next] = {static_cast<std::byte*>(tensor.mutable_data_ptr()), meta.bytes, in};
    }
    ++next;
  }
  if (head.staged) {
    if (next == sizes.size() || sizes[next] != 1)
      return Error(ErrorCode::kProtocol, "the byte behind copied tensors is missing");
    if (buffers[next].data == nullptr) buffers[next] = {&in->whole_, 1, in};
    in->staged_ = buffers[next].data;
    ++next;
  }
  if (next != sizes.size()) return Error(ErrorCode::kProtocol, "buffers that no tensor claims");
  std::span<const std::byte> token;
  if (head.device_memory && !reader.deviceToken(token))
    return Error(ErrorCode::kProtocol, reader.error());
  in->token_.assign(token.begin(), token.end());
  if (!reader.finished())
    return Error(ErrorCode::kProtocol, "the header is longer than its message");
  in->bytes_ += reader.gapBytes();
  return in;
}

// All at once: they share events and handles.
void IncomingMessage::copyLent() {
  if (lent_.empty()) return;
  TORCH_CHECK(devices_ != nullptr, "Weft RPC: a message is in memory that nobody lent");
  auto copies = devices_->copyFrom(std::move(borrowed_), token_, lent_);
  auto next = copies.begin();
  for (Slot& slot : slots_)
    if (slot.form == TensorForm::kDevice) slot.tensor = std::move(*next++);
}

std::vector<IncomingMessage::Arriving> IncomingMessage::arriving() const {
  std::vector<Arriving> found;
  std::size_t bytes = 0;
  for (const Slot& slot : slots_) {
    if (!slot.arrives) continue;
    found.push_back({slot.tensor, slot.device});
    bytes += slot.tensor.nbytes();
  }
  if (bytes <= kChunk) found.clear();
  return found;
}

void IncomingMessage::takeEarly() {
  if (early_ == nullptr) return;
  auto copies = early_->finish();
  early_.reset();
  auto next = copies.begin();
  for (Slot& slot : slots_)
    if (slot.arrives) slot.tensor = std::move(*next++);
}

namespace {
// On the worker thread, because it takes long and the loop thread serves other peers.
void fillPageTables(const at::Tensor& tensor) {
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  if (const auto block = transport::ExportedBlock::find(data, tensor.nbytes())) block->populate();
}

at::Tensor unpickled(const at::Tensor& pickle, bool distrusted) {
  if (distrusted)
    return readPickledTensor({static_cast<const char*>(pickle.const_data_ptr()), pickle.nbytes()});
  auto [payload, tensors] =
      torch::distributed::rpc::wireDeserialize(pickle.const_data_ptr(), pickle.nbytes());
  TORCH_CHECK(tensors.size() == 1, "Weft RPC: a pickled tensor held ", tensors.size(),
              " tensors instead of one");
  return tensors.front().detach();
}
}  // namespace

MessagePtr IncomingMessage::finish(bool distrusted) {
  payload();  // copies it out of shared memory
  TORCH_CHECK(staged_ == nullptr || *staged_ == std::byte{1},
              "Weft RPC: the sender could not copy a tensor of this message from its device; its "
              "log says why.");
  copyLent();
  takeEarly();
  std::vector<at::Tensor> tensors;
  tensors.reserve(slots_.size());
  for (Slot& slot : slots_) {
    at::Tensor tensor = std::move(slot.tensor);
    if (slot.shared) fillPageTables(tensor);
    // What is parsed must not change meanwhile.
    if (slot.shared && (distrusted || slot.form == TensorForm::kPickled)) tensor = tensor.clone();
    if (slot.form == TensorForm::kPickled) tensor = unpickled(tensor, distrusted);
    if (tensor.defined() && !slot.device.is_cpu() && tensor.device() != slot.device)
      tensor = toDevice(tensor, slot.device);
    if (!slot.gaps.empty()) {
      tensor = at::empty_strided(tensor.sizes(), slot.gaps, tensor.options()).copy_(tensor);
    }
    if (slot.requires_grad) tensor.set_requires_grad(true);
    tensors.push_back(std::move(tensor));
  }
  return c10::make_intrusive<Message>(std::move(payload_), std::move(tensors),
                                      static_cast<MessageType>(type_),
                                      static_cast<std::int64_t>(call_id_));
}

}  // namespace weft::rpc
