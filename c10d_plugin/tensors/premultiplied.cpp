#include "c10d_plugin/tensors/premultiplied.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

namespace weft::process_group {

at::Tensor factorOf(const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return {};
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(supplement != nullptr,
              "weft: PREMUL_SUM without its factor; make it with "
              "torch.distributed._make_nccl_premul_sum");
  if (supplement->tensor_factor.defined()) return supplement->tensor_factor.reshape({});
  return at::scalar_tensor(supplement->double_factor, at::kDouble);
}

ContiguousTensor premultiplied(const at::Tensor& tensor, const at::Tensor& factor,
                               ContiguousTensor::Use use) {
  if (!factor.defined()) return {tensor, use};
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor product = at::mul(tensor, factor).to(tensor.scalar_type()).contiguous();
  return {product, use == ContiguousTensor::Use::kReadWrite ? tensor : at::Tensor()};
}

}  // namespace weft::process_group
