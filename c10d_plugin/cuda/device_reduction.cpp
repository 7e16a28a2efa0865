#include "c10d_plugin/cuda/device_reduction.h"

#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

#include "c10d_plugin/tensors/reduce_op.h"

namespace weft::process_group {

using c10d::ReduceOp;

namespace {

// ATen has kernels for them, which the types that Weft reduces on the CPU alone lack.
bool hasKernels(c10::ScalarType type) {
  return type != c10::ScalarType::UInt16 && type != c10::ScalarType::UInt32 &&
         type != c10::ScalarType::UInt64;
}

bool isShort(c10::ScalarType type) {
  return type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16;
}

}  // namespace

DeviceReduction::DeviceReduction(const ReduceOp& op, c10::ScalarType type, const char* title)
    : op_(op.op_), type_(type), factor_(reductionOf(op, type, title).factor) {
  TORCH_CHECK(hasKernels(type), title, ": tensors of type ", type,
              " on CUDA can be moved between ranks but not reduced; convert them first");
  TORCH_CHECK(!factor_.defined() || !c10::isIntegralType(type, /*includeBool=*/true), title,
              ": a factor has no meaning for tensors of type ", type, " on CUDA");
}

void DeviceReduction::put(const at::Tensor& from, const at::Tensor& into) const {
  if (factor_.defined())
    into.copy_(at::mul(from, factor_));
  else
    into.copy_(from);
}

void DeviceReduction::add(const at::Tensor& sum, const at::Tensor& left,
                          const at::Tensor& right) const {
  at::Tensor into = sum;
  switch (op_) {
    case ReduceOp::PRODUCT:
      at::mul_out(into, left, right);
      return;
    case ReduceOp::MIN:
      at::minimum_out(into, left, right);
      return;
    case ReduceOp::MAX:
      at::maximum_out(into, left, right);
      return;
    case ReduceOp::BAND:
      at::bitwise_and_out(into, left, right);
      return;
    case ReduceOp::BOR:
      at::bitwise_or_out(into, left, right);
      return;
    case ReduceOp::BXOR:
      at::bitwise_xor_out(into, left, right);
      return;
    default:
      at::add_out(into, left, right);
  }
}

c10::ScalarType DeviceReduction::sumType() const {
  if (isShort(type_)) return c10::ScalarType::Float;
  const bool sums_integers = op_ == ReduceOp::AVG && c10::isIntegralType(type_, false);
  return sums_integers ? c10::ScalarType::Long : type_;
}

void DeviceReduction::combine(const std::vector<at::Tensor>& parts, const at::Tensor& into) const {
  if (into.numel() == 0) return;
  const bool wide = sumType() != type_;
  at::Tensor sum = wide ? at::empty_like(into, into.options().dtype(sumType())) : into;
  // ATen computes in the type of the parts, whatever the sum's is.
  if (wide) sum.copy_(parts[0]);
  add(sum, wide ? sum : parts[0], parts[1]);
  for (std::size_t rank = 2; rank < parts.size(); ++rank)
    add(sum, sum, parts[rank]);
  if (op_ == ReduceOp::AVG) {
    const auto ranks = static_cast<std::int64_t>(parts.size());
    if (c10::isIntegralType(type_, /*includeBool=*/false))
      sum.div_(ranks, "trunc");
    else
      sum.div_(ranks);
  }
  if (wide) into.copy_(sum);
}

}  // namespace weft::process_group
