#include "c10d_plugin/cuda/device/flat_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include "c10d_plugin/tensors/op_checks.h"
#include "c10d_plugin/tensors/overlap.h"

namespace weft::process_group {

namespace {

at::Tensor emptyLike(const at::Tensor& tensor) {
  return at::empty({tensor.numel()}, tensor.options().requires_grad(false));
}

}  // namespace

at::Tensor FlatCall::keep(at::Tensor flat) {
  memory_.push_back(flat);
  return flat;
}

at::Tensor FlatCall::reads(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  inputs_.push_back(tensor);
  if (isPlain(tensor)) return keep(tensor.view(-1));
  const at::Tensor flat = emptyLike(tensor);
  flat.view(tensor.sizes()).copy_(tensor);
  return keep(flat);
}

at::Tensor FlatCall::writes(const at::Tensor& tensor) {
  if (!isPlain(tensor)) return writesElsewhere(tensor);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  outputs_.push_back(tensor);
  return keep(tensor.view(-1));
}

at::Tensor FlatCall::writesElsewhere(const at::Tensor& tensor) {
  checkWritable(tensor, title_);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  outputs_.push_back(tensor);
  keep(tensor);
  copied_.emplace_back(tensor, emptyLike(tensor));
  return keep(copied_.back().second);
}

at::Tensor FlatCall::updates(const at::Tensor& tensor) {
  checkWritable(tensor, title_);
  const at::Tensor flat = reads(tensor);
  outputs_.push_back(tensor);
  if (isPlain(tensor)) return flat;
  keep(tensor);
  copied_.emplace_back(tensor, flat);
  return flat;
}

std::vector<at::Tensor> FlatCall::reads(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flats;
  for (const at::Tensor& tensor : tensors)
    flats.push_back(reads(tensor));
  return flats;
}

std::vector<at::Tensor> FlatCall::writes(const std::vector<at::Tensor>& tensors) {
  const bool disjoint = occupied(tensors).disjoint();
  std::vector<at::Tensor> flats;
  for (const at::Tensor& tensor : tensors)
    flats.push_back(disjoint ? writes(tensor) : writesElsewhere(tensor));
  return flats;
}

std::vector<at::Tensor> FlatCall::apart(std::vector<at::Tensor> in,
                                        const std::vector<at::Tensor>& out, int own) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Occupied outputs = occupied(out);
  for (std::size_t i = 0; i < in.size() && !out.empty(); ++i) {
    const ByteRange bytes = bytesOf(in[i]);
    const at::Tensor& place = out.at(in.size() == 1 ? static_cast<std::size_t>(own) : i);
    if (!same(bytes, bytesOf(place)) && outputs.overlaps(bytes)) in[i] = keep(in[i].clone());
  }
  return in;
}

void FlatCall::uses(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.is_cuda()) memory_.push_back(tensor);
}

void FlatCall::writeBack() const {
  for (const auto& [tensor, flat] : copied_)
    tensor.copy_(flat.view(tensor.sizes()));
}

}  // namespace weft::process_group
