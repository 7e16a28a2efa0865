#include "rpc_backend/codec/outgoing_tensors.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <algorithm>

#include "rpc_backend/codec/message_codec.h"
#include "rpc_backend/core/log.h"
#include "rpc_backend/devices/device_copy.h"
#include "rpc_backend/options/options.h"

namespace weft::rpc {

using transport::OwnedBuffer;

namespace {

OwnedBuffer bytesOf(const at::Tensor& host) {
  auto* data = static_cast<std::byte*>(const_cast<void*>(host.const_data_ptr()));
  // The storage is held, not the tensor: a tensor may own a Python object, and the last owner may
  // be released on a thread that must not wait for the GIL.
  return {data, host.nbytes(), std::make_shared<c10::Storage>(host.storage())};
}

std::string pickled(const at::Tensor& tensor, const std::string& peer) {
  try {
    return torch::distributed::rpc::wireSerialize({}, {tensor.detach().cpu()});
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "weft: a tensor of layout ", tensor.layout(), " and type ",
                tensor.toString(), " cannot be sent to worker '", peer,
                "': torch's pickler says: ", error.what_without_backtrace());
  }
}

void checkSendable(const at::Tensor& tensor, const std::string& peer) {
  TORCH_CHECK(!tensor.is_meta(), "weft: a tensor on the meta device was to be sent to worker '",
              peer, "', but it has no data to send. Send its shape and dtype instead.");
  if (!isPlain(tensor)) return;
  // torch makes such tensors (expand), and the peer takes them for a malformed message.
  TORCH_CHECK(std::all_of(tensor.sizes().begin(), tensor.sizes().end(),
                          [](std::int64_t size) { return size >= 0; }),
              "weft: a tensor of shape ", tensor.sizes(), " was to be sent to worker '", peer,
              "', but a size is negative. Look at the operator that made it.");
}

// The data of a storage, even of one whose data() throws.
const void* dataOf(const c10::Storage& storage) {
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
}

// Whether the tensor's elements must be in the memory of its storage.
bool holdsElements(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.is_nested() &&
         !tensor._is_zerotensor() && !tensor.is_meta() && tensor.numel() > 0;
}

// The same elements without gaps, on the same device; a copy only where one is needed. Those of a
// view with gaps are in row-major order, as its receiver takes them, whatever order resolve_conj()
// gives them.
at::Tensor toDense(const at::Tensor& tensor) {
  const bool dense = tensor.is_non_overlapping_and_dense();
  if (!tensor.is_conj() && !tensor.is_neg() && dense) return tensor;
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg();
  return dense ? plain : plain.contiguous();
}

OutgoingTensor describe(const at::Tensor& tensor, const Recipient& to) {
  OutgoingTensor out;
  if (!tensor.defined()) return out;
  checkSendable(tensor, to.name);
  checkMemory(tensor, to.name);
  out.target = mapDevice(tensor.device(), to.map, to.name);
  if (!isPlain(tensor)) {
    out.form = TensorForm::kPickled;
    out.pickle = pickled(tensor, to.name);
    return out;
  }
  out.form = TensorForm::kDense;
  out.dense = toDense(tensor);
  const bool lent = out.dense.is_cuda() && out.dense.numel() > 0 && out.target.is_cuda() &&
                    to.devices != nullptr &&
                    to.devices->reaches(to.message.peer, out.dense.device(), to.name);
  if (lent) out.form = TensorForm::kDevice;
  return out;
}

// Appends the parts of a sparse tensor, and then how they make it. They go through the host, since
// torch's checks of indices on a device would wait for it.
void describeSparse(const at::Tensor& tensor, const Recipient& to,
                    std::vector<OutgoingTensor>& out) {
  checkSendable(tensor, to.name);
  OutgoingTensor whole;
  whole.form = TensorForm::kSparse;
  whole.target = mapDevice(tensor.device(), to.map, to.name);
  const bool coalesced = tensor.layout() == c10::kSparse && tensor.is_coalesced();
  whole.sparse = {tensor.layout(), tensor.sizes().vec(), coalesced};
  for (const at::Tensor& part : sparseParts(tensor.cpu())) {
    out.push_back(describe(part, to));
    out.back().is_part = true;
  }
  out.push_back(std::move(whole));
}

// Lends the memory of the tensors of form kDevice. If that fails, they become dense ones.
void lend(OutgoingTensors& out, const Recipient& to) {
  std::vector<at::Tensor> lent;
  for (const OutgoingTensor& tensor : out.tensors)
    if (tensor.form == TensorForm::kDevice) lent.push_back(tensor.dense);
  if (lent.empty()) return;
  try {
    out.token = to.devices->lend(to.message, lent);
  } catch (const c10::Error& error) {
    // For example, the memory is not from torch's allocator.
    logInfo("tensors for worker '" + to.name +
            "' go through host memory: " + error.what_without_backtrace());
    for (OutgoingTensor& tensor : out.tensors)
      if (tensor.form == TensorForm::kDevice) tensor.form = TensorForm::kDense;
  }
}

// The bytes of dense ones.
void toHost(OutgoingTensors& out, const Recipient& to) {
  const auto staging = std::make_shared<HostStaging>();
  for (OutgoingTensor& tensor : out.tensors) {
    if (tensor.form != TensorForm::kDense) continue;
    if (!tensor.dense.is_cpu() && to.devices != nullptr)
      to.devices->countStaged(tensor.dense.nbytes());
    if (tensor.dense.is_cuda()) {
      staging->add(tensor.dense);
      continue;
    }
    if (!tensor.dense.is_cpu()) tensor.dense = tensor.dense.to(c10::kCPU, /*non_blocking=*/false);
    tensor.bytes = bytesOf(tensor.dense);
  }
  if (staging->empty()) return;
  staging->begin();
  if (!staging->awaitFirst()) out.staging = staging;
  std::size_t next = 0;
  for (OutgoingTensor& tensor : out.tensors)
    if (tensor.form == TensorForm::kDense && tensor.dense.is_cuda())
      tensor.bytes = staging->bytes(next++);
}

}  // namespace

bool isPlain(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor.is_nested() &&
         tensor.has_storage() && !tensor._is_zerotensor() && !tensor.is_meta() &&
         static_cast<std::size_t>(tensor.dim()) <= kMaxDims &&
         itemSize(static_cast<std::uint8_t>(tensor.scalar_type())) != 0;
}

void checkNoDerivatives(const at::Tensor& tensor, const std::string& peer) {
  const auto transforms = c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched});
  TORCH_CHECK(!tensor.unsafeGetTensorImpl()->key_set().has_any(transforms),
              "weft: a tensor inside a transform of torch.func (grad, vmap, jvp, …) was to be sent "
              "to worker '",
              peer,
              "', and a call carries no transform: call outside of it, or use "
              "torch.distributed.autograd for gradients.");
  TORCH_CHECK(!c10::AutogradState::get_tls_state().get_fw_grad_mode() ||
                  !tensor._fw_grad(/*level=*/0).defined(),
              "weft: a tensor has a forward-mode gradient, which no call to worker '", peer,
              "' carries: give it torch.autograd.forward_ad.unpack_dual(x).primal, or use reverse "
              "mode.");
}

void checkMemory(const at::Tensor& tensor, const std::string& peer) {
  if (!holdsElements(tensor)) return;
  const c10::Storage& storage = tensor.storage();
  const std::size_t in_a_byte = tensor.scalar_type() == at::kQUInt4x2   ? 2
                                : tensor.scalar_type() == at::kQUInt2x4 ? 4
                                                                        : 1;
  const std::size_t bytes =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                       static_cast<std::size_t>(tensor.storage_offset()));
  const std::size_t needed = (bytes + in_a_byte - 1) / in_a_byte;
  const std::size_t held = dataOf(storage) == nullptr ? 0 : storage.nbytes();
  TORCH_CHECK(held >= needed, "weft: a tensor of shape ", tensor.sizes(), " and type ",
              tensor.toString(), " was to be sent to worker '", peer, "', but its memory has ",
              held, " of the ", needed,
              " bytes that its elements need. Its storage was resized or freed, as FSDP does with "
              "parameters, or it only wraps other tensors, as FakeTensor and MaskedTensor do: send "
              "a plain tensor that has its data.");
}

OutgoingTensors prepare(const std::vector<at::Tensor>& tensors, const Recipient& to) {
  OutgoingTensors out;
  out.tensors.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && sparsePartCount(tensor.layout()) > 0 && !tensor.is_meta()) {
      describeSparse(tensor, to, out.tensors);
    } else {
      out.tensors.push_back(describe(tensor, to));
    }
  }
  lend(out, to);
  toHost(out, to);
  return out;
}

}  // namespace weft::rpc
