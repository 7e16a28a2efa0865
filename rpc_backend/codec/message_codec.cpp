#include "rpc_backend/codec/message_codec.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>

#include "rpc_backend/codec/outgoing_tensors.h"
#include "rpc_backend/options/options.h"
#include "rpc_backend/wire/wire_writer.h"

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

// A string, or a vector of characters, as a buffer that owns it.
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

// Whether the tensor is a view whose gaps the receiver gets, too.
bool keepsGaps(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return false;
  const auto sizes = std::span(tensor.sizes().data(), tensor.sizes().size());
  const auto strides = std::span(tensor.strides().data(), tensor.strides().size());
  const auto layout = layoutOf(sizes, strides, tensor.itemsize());
  return layout && !layout->isDense() && layout->span <= kMaxGappedBytes;
}

void describeSparse(const SparseForm& sparse, TensorMeta& meta) {
  meta.form = TensorForm::kSparse;
  meta.layout = static_cast<std::uint8_t>(sparse.layout);
  meta.coalesced = sparse.coalesced;
  meta.ndim = static_cast<std::uint8_t>(sparse.sizes.size());
  std::copy(sparse.sizes.begin(), sparse.sizes.end(), meta.sizes.begin());
}

// Writes the description, and appends a buffer unless the bytes are inline or lent.
void encodeTensor(const at::Tensor& tensor, OutgoingTensor& out, WireWriter& writer,
                  std::vector<OwnedBuffer>& buffers) {
  TensorMeta meta;
  if (out.form == TensorForm::kUndefined) {
    writer.tensor(meta);
    return;
  }
  meta.device_type = static_cast<std::uint8_t>(out.target.type());
  meta.device_index = out.target.index();
  meta.requires_grad = tensor.requires_grad();
  if (out.form == TensorForm::kPickled) {
    meta.form = TensorForm::kPickled;
    meta.bytes = out.pickle.size();
    writer.tensor(meta);
    buffers.push_back(ownedText(std::move(out.pickle)));
    return;
  }
  if (out.form == TensorForm::kSparse) {
    describeSparse(out.sparse, meta);
    writer.tensor(meta);
    return;
  }
  describeDense(out.dense, meta);
  meta.gapped = keepsGaps(tensor);
  if (meta.gapped) std::ranges::copy(tensor.strides(), meta.strides.begin());
  meta.form = out.form;
  meta.is_inline = out.form == TensorForm::kDense && meta.bytes <= kInlineTensorBytes;
  if (meta.is_inline) meta.inline_bytes = {out.bytes.data, out.bytes.size};
  writer.tensor(meta);
  if (out.form == TensorForm::kDense && !meta.is_inline) buffers.push_back(std::move(out.bytes));
}

// A copy with the strides that a peer would see.
at::Tensor copyTensor(const at::Tensor& tensor) {
  if (!isPlain(tensor) || !keepsGaps(tensor)) return tensor.clone();
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
}

// A timeout that is too long for the field is sent as no limit.
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
                          milliseconds timeout, const DeviceLender& lender) {
  for (const at::Tensor& tensor : message->tensors())
    if (tensor.defined()) checkNoDerivatives(tensor, peer);
  const c10::InferenceMode no_graph;
  transport::Message out;
  const auto& payload = message->payload();
  const auto& tensors = message->tensors();
  OutgoingTensors prepared =
      prepare(tensors, {peer, device_map, {lender.to, kind, call_id}, lender.devices});
  TORCH_CHECK(
      prepared.tensors.size() <= kMaxTensors, "weft: a message to worker '", peer, "' has ",
      prepared.tensors.size(), " tensors, and the limit is ", kMaxTensors,
      transport::resourceExhausted(". Send them in several calls, or as fewer, larger tensors."));
  WireHeader header;
  header.kind = kind;
  header.device_memory = !prepared.token.empty();
  header.staged = prepared.staging != nullptr;
  header.type = static_cast<std::uint16_t>(message->type());
  header.call_id = call_id;
  header.timeout_ms = onTheWire(timeout);
  header.tensor_count = static_cast<std::uint32_t>(prepared.tensors.size());
  header.payload_inline = payload.size() <= kInlinePayloadBytes;
  if (header.payload_inline) header.payload = std::as_bytes(std::span(payload));
  out.header.reserve(32 + header.payload.size() + prepared.tensors.size() * 64 +
                     prepared.token.size());
  WireWriter writer(out.header);
  writer.header(header);
  if (!header.payload_inline) out.buffers.push_back(ownedPayload(message));
  auto given = tensors.begin();
  for (OutgoingTensor& tensor : prepared.tensors)
    encodeTensor(tensor.is_part ? tensor.dense : *given++, tensor, writer, out.buffers);
  if (header.device_memory) writer.deviceToken(prepared.token);
  if (const auto& staging = prepared.staging) {
    staging->locate(out.buffers);
    out.buffers.push_back({staging->whole(), 1, staging});
    out.filling = staging;
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

MessagePtr copyForSelf(const Message& message, const DeviceMap& device_map,
                       const std::string& self) {
  const c10::InferenceMode not_of_the_caller(false);
  std::vector<at::Tensor> tensors;
  tensors.reserve(message.tensors().size());
  for (const at::Tensor& tensor : message.tensors()) {
    if (!tensor.defined()) {
      tensors.emplace_back();
      continue;
    }
    checkNoDerivatives(tensor, self);
    checkMemory(tensor, self);
    at::Tensor copy = copyTensor(tensor.detach());
    if (!device_map.empty()) copy = copy.to(mapDevice(tensor.device(), device_map, self));
    copy.set_requires_grad(tensor.requires_grad());
    tensors.push_back(std::move(copy));
  }
  std::vector<char> payload = message.payload();
  return c10::make_intrusive<Message>(std::move(payload), std::move(tensors), message.type(),
                                      message.id());
}

}  // namespace weft::rpc
