#include "rpc_backend/codec/incoming_message.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include "rpc_backend/codec/message_parser.h"
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

transport::Result<std::shared_ptr<IncomingMessage>> IncomingMessage::begin(
    std::span<const std::byte> header, std::span<const std::uint64_t> sizes,
    std::vector<OwnedBuffer>& buffers, transport::WarmPool* pool) {
  try {
    return MessageParser(header, sizes, buffers, pool).parse();
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

// Copies all of them at once, because they share events and handles.
void IncomingMessage::copyLent() {
  if (lent_.empty()) return;
  TORCH_CHECK(devices_ != nullptr, "weft: a message is in device memory that was not lent");
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
  TORCH_CHECK(!distrusted,
              "weft: a quantised or other unusual tensor is sent by torch's pickler, and the "
              "request policy here does not trust the sender's pickles: send its parts as plain "
              "tensors.");
  auto [payload, tensors] =
      torch::distributed::rpc::wireDeserialize(pickle.const_data_ptr(), pickle.nbytes());
  TORCH_CHECK(tensors.size() == 1, "weft: a pickled tensor held ", tensors.size(),
              " tensors instead of one");
  return tensors.front().detach();
}

// Takes the last tensors for the parts of a sparse one.
at::Tensor joinLast(const SparseForm& form, std::vector<at::Tensor>& tensors) {
  const auto first = tensors.end() - static_cast<std::ptrdiff_t>(sparsePartCount(form.layout));
  const std::vector<at::Tensor> parts(first, tensors.end());
  tensors.erase(first, tensors.end());
  return joinSparse(form, parts);
}

}  // namespace

at::Tensor IncomingMessage::finishTensor(Slot& slot, bool distrusted) {
  at::Tensor tensor = std::move(slot.tensor);
  if (slot.shared) fillPageTables(tensor);
  // A pickle must not change while it is parsed.
  if (slot.shared && (distrusted || slot.form == TensorForm::kPickled)) tensor = tensor.clone();
  if (slot.form == TensorForm::kPickled) tensor = unpickled(tensor, distrusted);
  if (tensor.defined() && !slot.device.is_cpu() && tensor.device() != slot.device)
    tensor = toDevice(tensor, slot.device);
  if (!slot.gaps.empty())
    tensor = at::empty_strided(tensor.sizes(), slot.gaps, tensor.options()).copy_(tensor);
  if (slot.requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

MessagePtr IncomingMessage::finish(bool distrusted) {
  payload();  // copies it out of shared memory
  TORCH_CHECK(staged_.data == nullptr || *staged_.data == std::byte{1},
              "weft: the sender could not copy a tensor of this message from its device; its "
              "log says why.");
  copyLent();
  takeEarly();
  std::vector<at::Tensor> tensors;
  tensors.reserve(slots_.size());
  for (Slot& slot : slots_) {
    if (slot.form == TensorForm::kSparse) slot.tensor = joinLast(slot.sparse, tensors);
    tensors.push_back(finishTensor(slot, distrusted));
  }
  return c10::make_intrusive<Message>(std::move(payload_), std::move(tensors),
                                      static_cast<MessageType>(type_),
                                      static_cast<std::int64_t>(call_id_));
}

}  // namespace weft::rpc
