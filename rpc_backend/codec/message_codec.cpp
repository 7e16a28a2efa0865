#include "rpc_backend/codec/message_codec.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <algorithm>
#include <cstring>

#include "rpc_backend/codec/shared_tensor.h"
#include "transport/memory/exported_block.h"

namespace weft::rpc {

using torch::distributed::rpc::Message;
using torch::distributed::rpc::MessageType;
using transport::OwnedBuffer;

namespace {

std::size_t itemSize(std::uint8_t dtype) {
  if (dtype >= static_cast<std::uint8_t>(c10::ScalarType::NumOptions)) return 0;
  const auto type = static_cast<c10::ScalarType>(dtype);
  // Quantised types need a quantiser, which raw elements do not carry.
  if (type == c10::ScalarType::Undefined || c10::isQIntType(type)) return 0;
  return c10::elementSize(type);
}

// True when the tensor is nothing more than elements in memory.
bool isPlain(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor.is_nested() &&
         tensor.has_storage() && !tensor._is_zerotensor() && !tensor.is_meta() &&
         static_cast<std::size_t>(tensor.dim()) <= kMaxDims &&
         itemSize(static_cast<std::uint8_t>(tensor.scalar_type())) != 0;
}

// Dense host memory that shows what `tensor` shows; a copy only where there must be one.
at::Tensor toHostDense(const at::Tensor& tensor) {
  if (tensor.device().is_cpu() && !tensor.is_conj() && !tensor.is_neg() &&
      tensor.is_non_overlapping_and_dense()) {
    return tensor;
  }
  at::Tensor plain = tensor.detach().resolve_conj().resolve_neg();
  if (!plain.device().is_cpu()) {
    noteHostStaging();
    plain = plain.to(c10::kCPU, /*non_blocking=*/false);
  }
  return plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
}

std::span<const std::byte> bytesOf(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

OwnedBuffer ownedBytes(const at::Tensor& tensor) {
  auto* data = static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));
  // The storage, not the tensor: a tensor may own a Python object, and the last owner may
  // be dropped on a thread that must not wait for the GIL.
  return {data, tensor.nbytes(), std::make_shared<c10::Storage>(tensor.storage())};
}

OwnedBuffer ownedString(std::string text) {
  auto owner = std::make_shared<std::string>(std::move(text));
  return {reinterpret_cast<std::byte*>(owner->data()), owner->size(), owner};
}

void describeDense(const at::Tensor& dense, TensorMeta& meta) {
  meta.form = TensorForm::kDense;
  meta.dtype = static_cast<std::uint8_t>(dense.scalar_type());
  meta.ndim = static_cast<std::uint8_t>(dense.dim());
  for (std::size_t d = 0; d < meta.ndim; ++d) {
    meta.sizes[d] = dense.size(static_cast<std::int64_t>(d));
    meta.strides[d] = dense.stride(static_cast<std::int64_t>(d));
  }
  meta.bytes = dense.nbytes();
}

// A view with gaps stays one at the receiver, when that costs it little memory.
void describeGaps(const at::Tensor& tensor, TensorMeta& meta) {
  if (tensor.is_non_overlapping_and_dense()) return;
  const auto sizes = std::span(tensor.sizes().data(), tensor.sizes().size());
  const auto strides = std::span(tensor.strides().data(), tensor.strides().size());
  const auto span = gappedSpan(sizes, strides, tensor.itemsize());
  if (!span || !worthKeepingGaps(*span, tensor.nbytes())) return;
  meta.gapped = true;
  std::copy(strides.begin(), strides.end(), meta.strides.begin());
}

std::string pickled(const at::Tensor& tensor, const std::string& peer) {
  try {
    return torch::distributed::rpc::wireSerialize({}, {tensor.detach().cpu()});
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "Weft RPC: a tensor of layout ", tensor.layout(), " and type ",
                tensor.toString(), " cannot be sent to worker '", peer,
                "': torch's pickler says: ", error.what_without_backtrace());
  }
}

void encodeTensor(const at::Tensor& tensor, const DeviceMap& map, const std::string& peer,
                  WireWriter& writer, std::vector<OwnedBuffer>& buffers) {
  TensorMeta meta;
  if (!tensor.defined()) {
    writer.tensor(meta);
    return;
  }
  TORCH_CHECK(!tensor.is_meta(), "Weft RPC: a tensor on the meta device was to be sent to worker '",
              peer, "', but it has no data to send. Send its shape and dtype instead.");
  const c10::Device target = mapDevice(tensor.device(), map, peer);
  meta.device_type = static_cast<std::uint8_t>(target.type());
  meta.device_index = target.index();
  meta.requires_grad = tensor.requires_grad();
  if (!isPlain(tensor)) {
    meta.form = TensorForm::kPickled;
    std::string pickle = pickled(tensor, peer);
    meta.bytes = pickle.size();
    writer.tensor(meta);
    buffers.push_back(ownedString(std::move(pickle)));
    return;
  }
  const at::Tensor dense = toHostDense(tensor);
  describeDense(dense, meta);
  describeGaps(tensor, meta);
  if (meta.bytes <= kInlineTensorBytes) {
    meta.is_inline = true;
    meta.inline_bytes = bytesOf(dense);
    writer.tensor(meta);
  } else {
    writer.tensor(meta);
    buffers.push_back(ownedBytes(dense));
  }
}

OwnedBuffer ownedPayload(const c10::intrusive_ptr<Message>& message) {
  const bool ours = message.use_count() == 1;
  auto owner = std::make_shared<std::vector<char>>(ours ? std::move(*message).movePayload()
                                                        : std::vector<char>(message->payload()));
  return {reinterpret_cast<std::byte*>(owner->data()), owner->size(), owner};
}

}  // namespace

transport::Message encode(WireKind kind, std::uint64_t call_id,
                          const c10::intrusive_ptr<Message>& message, const DeviceMap& device_map,
                          const std::string& peer) {
  const c10::InferenceMode no_graph;
  transport::Message out;
  const auto& payload = message->payload();
  const auto& tensors = message->tensors();
  WireHeader header;
  header.kind = kind;
  header.type = static_cast<std::uint16_t>(message->type());
  header.call_id = call_id;
  header.tensor_count = static_cast<std::uint32_t>(tensors.size());
  header.payload_inline = payload.size() <= kInlinePayloadBytes;
  if (header.payload_inline) header.payload = std::as_bytes(std::span(payload));
  out.header.reserve(32 + header.payload.size() + tensors.size() * 64);
  WireWriter writer(out.header);
  writer.header(header);
  if (!header.payload_inline) out.buffers.push_back(ownedPayload(message));
  for (const at::Tensor& tensor : tensors) {
    encodeTensor(tensor, device_map, peer, writer, out.buffers);
  }
  return out;
}

transport::Message encodeControl(WireKind kind, std::uint16_t type, std::uint64_t call_id,
                                 const std::string& text) {
  transport::Message out;
  WireHeader header;
  header.kind = kind;
  header.type = type;
  header.call_id = call_id;
  header.payload = std::as_bytes(std::span(text));
  WireWriter(out.header).header(header);
  return out;
}

const std::vector<char>& IncomingMessage::payload() const {
  if (shared_payload_.data != nullptr) {
    // What is parsed must not change meanwhile.
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
  const c10::IntArrayRef sizes(meta.sizes.data(), meta.ndim);
  if (memory.data != nullptr) {
    if (meta.form == TensorForm::kDense) {
      const c10::IntArrayRef strides(meta.strides.data(), meta.ndim);
      slot.tensor =
          tensorOver(memory, sizes,
                     meta.gapped ? c10::OptionalIntArrayRef() : c10::OptionalIntArrayRef(strides),
                     static_cast<c10::ScalarType>(meta.dtype));
    } else {
      slot.tensor =
          tensorOver(memory, {static_cast<std::int64_t>(meta.bytes)}, std::nullopt, at::kByte);
    }
    return slot;
  }
  if (meta.gapped) {
    slot.tensor = at::empty(
        c10::IntArrayRef(meta.sizes.data(), meta.ndim),
        at::TensorOptions().dtype(static_cast<c10::ScalarType>(meta.dtype)).device(c10::kCPU));
  } else if (meta.form == TensorForm::kDense) {
    slot.tensor = at::empty_strided(
        c10::IntArrayRef(meta.sizes.data(), meta.ndim),
        c10::IntArrayRef(meta.strides.data(), meta.ndim),
        at::TensorOptions().dtype(static_cast<c10::ScalarType>(meta.dtype)).device(c10::kCPU));
  } else {
    slot.tensor = at::empty({static_cast<std::int64_t>(meta.bytes)}, at::kByte);
  }
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
    // Nothing may be thrown on the loop thread. c10::Error: no memory for a tensor.
    std::uint64_t bytes = 0;
    for (const std::uint64_t size : sizes)
      bytes += size;
    return transport::Error(
        transport::ErrorCode::kLimitExceeded,
        "there is no memory for the " + std::to_string(bytes) + " bytes of a message");
  }
}

transport::Result<std::shared_ptr<IncomingMessage>> IncomingMessage::parse(
    std::span<const std::byte> header, std::span<const std::uint64_t> sizes,
    std::vector<OwnedBuffer>& buffers, transport::WarmPool* pool) {
  using transport::Error;
  using transport::ErrorCode;
  WireReader reader(header);
  WireHeader head;
  if (!reader.header(head)) return Error(ErrorCode::kProtocol, reader.error());
  buffers.resize(sizes.size());
  std::shared_ptr<IncomingMessage> in(new IncomingMessage());
  in->kind_ = head.kind;
  in->type_ = head.type;
  in->call_id_ = head.call_id;
  std::size_t next = 0;
  const auto take = [&](std::uint64_t bytes) {
    return next < sizes.size() && sizes[next] == bytes;
  };
  if (head.payload_inline) {
    const auto* first = reinterpret_cast<const char*>(head.payload.data());
    in->payload_.assign(first, first + head.payload.size());
    in->bytes_ = in->payload_.size();
  } else {
    if (sizes.empty()) return Error(ErrorCode::kProtocol, "the payload's buffer is missing");
    in->bytes_ = sizes.front();
    if (buffers.front().data != nullptr) {
      in->shared_payload_ = buffers.front();
    } else {
      in->payload_.resize(sizes.front());
      buffers.front() = {reinterpret_cast<std::byte*>(in->payload_.data()), in->payload_.size(),
                         in};
    }
    ++next;
  }
  in->slots_.reserve(head.tensor_count);
  for (std::uint32_t i = 0; i < head.tensor_count; ++i) {
    TensorMeta meta;
    if (!reader.tensor(meta, &itemSize)) return Error(ErrorCode::kProtocol, reader.error());
    const bool in_buffer = meta.form != TensorForm::kUndefined && !meta.is_inline;
    if (in_buffer && !take(meta.bytes)) {
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
    in->bytes_ += meta.bytes;
    if (!in_buffer) continue;
    if (!shared) {
      const at::Tensor& tensor = in->slots_.back().tensor;
      buffers[next] = {static_cast<std::byte*>(tensor.mutable_data_ptr()), meta.bytes, in};
    }
    ++next;
  }
  if (next != sizes.size()) return Error(ErrorCode::kProtocol, "buffers that no tensor claims");
  if (!reader.finished())
    return Error(ErrorCode::kProtocol, "the header is longer than its message");
  return in;
}

namespace {
// Here, and not where the memory was mapped: the loop thread has others to serve.
void fillPageTables(const at::Tensor& tensor) {
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  if (const auto block = transport::ExportedBlock::find(data, tensor.nbytes())) block->populate();
}
}  // namespace

c10::intrusive_ptr<Message> IncomingMessage::finish() {
  payload();  // has it copied, if need be
  std::vector<at::Tensor> tensors;
  tensors.reserve(slots_.size());
  for (Slot& slot : slots_) {
    at::Tensor tensor = std::move(slot.tensor);
    if (slot.shared) fillPageTables(tensor);
    if (slot.form == TensorForm::kPickled) {
      if (slot.shared) tensor = tensor.clone();  // what is parsed must not change meanwhile
      auto unpickled =
          torch::distributed::rpc::wireDeserialize(tensor.const_data_ptr(), tensor.nbytes());
      TORCH_CHECK(unpickled.second.size() == 1, "Weft RPC: a pickled tensor held ",
                  unpickled.second.size(), " tensors instead of one");
      tensor = unpickled.second.front().detach();
    }
    if (!slot.gaps.empty()) {
      tensor = at::empty_strided(tensor.sizes(), slot.gaps, tensor.options()).copy_(tensor);
    }
    if (tensor.defined() && !slot.device.is_cpu()) {
      noteHostStaging();
      tensor = tensor.to(slot.device, /*non_blocking=*/false);
    }
    if (slot.requires_grad) tensor.set_requires_grad(true);
    tensors.push_back(std::move(tensor));
  }
  return c10::make_intrusive<Message>(std::move(payload_), std::move(tensors),
                                      static_cast<MessageType>(type_),
                                      static_cast<std::int64_t>(call_id_));
}

namespace {
// With the strides that a peer would see (describeGaps).
at::Tensor copyOf(const at::Tensor& tensor) {
  if (isPlain(tensor)) {
    TensorMeta meta;
    describeDense(tensor, meta);
    describeGaps(tensor, meta);
    if (meta.gapped) {
      return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
    }
  }
  return tensor.clone();
}
}  // namespace

c10::intrusive_ptr<Message> copyForSelf(const Message& message) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(message.tensors().size());
  for (const at::Tensor& tensor : message.tensors()) {
    if (!tensor.defined()) {
      tensors.emplace_back();
      continue;
    }
    at::Tensor copy = copyOf(tensor.detach());
    copy.set_requires_grad(tensor.requires_grad());
    tensors.push_back(std::move(copy));
  }
  std::vector<char> payload = message.payload();
  return c10::make_intrusive<Message>(std::move(payload), std::move(tensors), message.type(),
                                      message.id());
}

std::size_t messageBytes(const Message& message) {
  std::size_t bytes = message.payload().size();
  for (const at::Tensor& tensor : message.tensors()) {
    if (tensor.defined() && tensor.layout() == c10::kStrided) bytes += tensor.nbytes();
  }
  return bytes;
}

}  // namespace weft::rpc
