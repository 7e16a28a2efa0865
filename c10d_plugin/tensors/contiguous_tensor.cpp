#include "c10d_plugin/tensors/contiguous_tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

namespace weft::process_group {

namespace {

bool hasItsMemory(const at::Tensor& tensor) {
  return tensor._is_zerotensor() ||
         at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                          tensor.storage_offset()) <= tensor.storage().nbytes();
}

std::string missingMemoryText(const at::Tensor& tensor) {
  return c10::str("a tensor of ", tensor.sizes(), " has a storage of only ",
                  tensor.storage().nbytes(), " bytes; the storage was made smaller");
}

at::Tensor contiguousLike(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().requires_grad(false),
                   at::MemoryFormat::Contiguous);
}

}  // namespace

void checkDense(const at::Tensor& tensor, const char* title) {
  TORCH_CHECK(tensor.defined(), title, ": a tensor is undefined");
  TORCH_CHECK(tensor.device().is_cpu(), title, ": all tensors of a call must be on one device; ",
              "one is on ", tensor.device());
  TORCH_CHECK(tensor.layout() == c10::kStrided, title, ": tensors must be dense, got ",
              tensor.layout(), "; only all_reduce takes sparse ones");
  TORCH_CHECK(hasItsMemory(tensor), title, ": ", missingMemoryText(tensor));
}

void checkMemory(const at::Tensor& tensor) {
  TORCH_CHECK(hasItsMemory(tensor), missingMemoryText(tensor),
              " after the operation was called; keep it until wait() has returned");
}

void copyInto(const at::Tensor& into, const at::Tensor& from) {
  checkMemory(into);
  checkMemory(from);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  into.copy_(from);
}

at::Tensor copyOf(const at::Tensor& tensor) {
  at::Tensor copy = contiguousLike(tensor);
  copyInto(copy, tensor);
  return copy;
}

ContiguousTensor::ContiguousTensor(const at::Tensor& tensor, Use use) {
  checkMemory(tensor);
  if (isPlain(tensor)) {
    memory_ = tensor;
    return;
  }
  memory_ = contiguousLike(tensor);
  if (use != Use::kWrite) copyInto(memory_, tensor);
  if (use != Use::kRead) original_ = tensor;
}

ContiguousTensor ContiguousTensor::elsewhere(const at::Tensor& tensor) {
  return {contiguousLike(tensor), tensor};
}

void ContiguousTensor::writeBack() const {
  if (original_.defined()) copyInto(original_, memory_);
}

}  // namespace weft::process_group
