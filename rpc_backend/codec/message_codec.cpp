#include "rpc_backend/codec/message_codec.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <algorithm>
#include <limits>

namespace weft::rpc {

using transport::OwnedBuffer;

std::size_t itemSize(std::uint8_t dtype) {
  if (dtype >= static_cast<std::uint8_t>(c10::ScalarType::NumOptions)) return 0;
  const auto type = static_cast<c10::ScalarType>(dtype);
  // Quantised types need a quantiser, which raw elements do not carry.
  if (type == c10::ScalarType::Undefined || c10::isQIntType(type)) return 0;
  return c10::elementSize(type);
}

namespace {

// True when the tensor is only elements in memory.
bool isPlain(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor.is_nested() &&
         tensor.has_storage() && !tensor._is_zerotensor() && !tensor.is_meta() &&
         static_cast<std::size_t>(tensor.dim()) <= kMaxDims &&
         itemSize(static_cast<std::uint8_t>(tensor.scalar_type())) != 0;
}

// The same elements in dense host memory; a copy only where one is needed.
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
  // The storage is held, not the tensor: a tensor may own a Python object, and the last owner may
  // be released on a thread that must not wait for the GIL.
  return {data, tensor.nbytes(), std::make_shared<c10::Storage>(tensor.storage())};
}

// Of a string, or a vector of characters.
template <typename Text>
OwnedBuffer ownedText(Text text) {
  auto owner = std::make_shared<Text>(std::move(text));
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

// A view with gaps keeps them at the receiver when that costs little memory.
void describeGaps(const at::Tensor& tensor, TensorMeta& meta, GapBudget& gaps) {
  const auto sizes = std::span(tensor.sizes().data(), tensor.sizes().size());
  const auto strides = std::span(tensor.strides().data(), tensor.strides().size());
  TensorLayout layout{meta.bytes, meta.bytes};
  if (!tensor.is_non_overlapping_and_dense())
    layout = layoutOf(sizes, strides, tensor.itemsize()).value_or(layout);
  if (!gaps.admits(layout) || layout.isDense()) return;
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

// Writes the description, and appends a buffer unless the bytes are inline.
void encodeTensor(const at::Tensor& tensor, const DeviceMap& map, const std::string& peer,
                  GapBudget& gaps, WireWriter& writer, std::vector<OwnedBuffer>& buffers) {
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
    buffers.push_back(ownedText(std::move(pickle)));
    return;
  }
  // torch makes such tensors (expand), and the peer takes them for a malformed message.
  TORCH_CHECK(std::all_of(tensor.sizes().begin(), tensor.sizes().end(),
                          [](std::int64_t size) { return size >= 0; }),
              "Weft RPC: a tensor of shape ", tensor.sizes(), " was to be sent to worker '", peer,
              "', but a size is negative. Look at the operator that made it.");
  const at::Tensor dense = toHostDense(tensor);
  describeDense(dense, meta);
  describeGaps(tensor, meta, gaps);
  if (meta.bytes <= kInlineTensorBytes) {
    meta.is_inline = true;
    meta.inline_bytes = bytesOf(dense);
    writer.tensor(meta);
  } else {
    writer.tensor(meta);
    buffers.push_back(ownedBytes(dense));
  }
}

// A copy with the strides that a peer would see.
at::Tensor copyTensor(const at::Tensor& tensor, GapBudget& gaps) {
  if (isPlain(tensor)) {
    TensorMeta meta;
    describeDense(tensor, meta);
    describeGaps(tensor, meta, gaps);
    if (meta.gapped) {
      return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
    }
  }
  return tensor.clone();
}

// What is too long to be counted is sent as no limit.
std::uint32_t onTheWire(milliseconds timeout) {
  constexpr auto kLongest = std::numeric_limits<std::uint32_t>::max();
  return timeout.count() > kLongest ? 0 : static_cast<std::uint32_t>(timeout.count());
}

OwnedBuffer ownedPayload(const MessagePtr& message) {
  const bool ours = message.use_count() == 1;
  return ownedText(ours ? std::move(*message).movePayload()
                        : std::vector<char>(message->payload()));
}

}  // namespace

transport::Message encode(WireKind kind, std::uint64_t call_id, const MessagePtr& message,
                          const DeviceMap& device_map, const std::string& peer,
                          milliseconds timeout) {
  const c10::InferenceMode no_graph;
  transport::Message out;
  const auto& payload = message->payload();
  const auto& tensors = message->tensors();
  TORCH_CHECK(tensors.size() <= kMaxTensors, "Weft RPC: a message to worker '", peer, "' has ",
              tensors.size(), " tensors, and the limit is ", kMaxTensors,
              ". Send them in several calls, or as fewer, larger tensors.");
  WireHeader header;
  header.kind = kind;
  header.type = static_cast<std::uint16_t>(message->type());
  header.call_id = call_id;
  header.timeout_ms = onTheWire(timeout);
  header.tensor_count = static_cast<std::uint32_t>(tensors.size());
  header.payload_inline = payload.size() <= kInlinePayloadBytes;
  if (header.payload_inline) header.payload = std::as_bytes(std::span(payload));
  out.header.reserve(32 + header.payload.size() + tensors.size() * 64);
  WireWriter writer(out.header);
  writer.header(header);
  if (!header.payload_inline) out.buffers.push_back(ownedPayload(message));
  GapBudget gaps;
  for (const at::Tensor& tensor : tensors) {
    encodeTensor(tensor, device_map, peer, gaps, writer, out.buffers);
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

MessagePtr copyForSelf(const Message& message) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(message.tensors().size());
  GapBudget gaps;
  for (const at::Tensor& tensor : message.tensors()) {
    if (!tensor.defined()) {
      tensors.emplace_back();
      continue;
    }
    at::Tensor copy = copyTensor(tensor.detach(), gaps);
    copy.set_requires_grad(tensor.requires_grad());
    tensors.push_back(std::move(copy));
  }
  std::vector<char> payload = message.payload();
  return c10::make_intrusive<Message>(std::move(payload), std::move(tensors), message.type(),
                                      message.id());
}

}  // namespace weft::rpc
