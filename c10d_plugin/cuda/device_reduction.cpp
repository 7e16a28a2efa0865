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
#include <ATen/ops/scalar_tensor.h>

namespace weft::process_group {

using c10d::ReduceOp;

namespace {

bool isReducible(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::Short:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexFloat:
    case c10::ScalarType::ComplexDouble:
      return true;
    default:
      return false;
  }
}

bool hasMeaning(ReduceOp::RedOpType op, c10::ScalarType type) {
  switch (op) {
    case ReduceOp::SUM:
    case ReduceOp::PRODUCT:
      return true;
    case ReduceOp::AVG:
      return type != c10::ScalarType::Bool;
    case ReduceOp::PREMUL_SUM:
      return !c10::isIntegralType(type, /*includeBool=*/true);
    case ReduceOp::MIN:
    case ReduceOp::MAX:
      return !c10::isComplexType(type);
    case ReduceOp::BAND:
    case ReduceOp::BOR:
    case ReduceOp::BXOR:
      return c10::isIntegralType(type, /*includeBool=*/true);
    default:
      return false;
  }
}

at::Tensor factorOf(const ReduceOp& op, const char* title) {
  if (op.op_ != ReduceOp::PREMUL_SUM) return {};
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(supplement != nullptr, title,
              ": PREMUL_SUM without its factor; make it with "
              "torch.distributed._make_nccl_premul_sum");
  if (supplement->tensor_factor.defined()) return supplement->tensor_factor.reshape({});
  return at::scalar_tensor(supplement->double_factor, at::kDouble);
}

bool isShort(c10::ScalarType type) {
  return type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16;
}

}  // namespace

DeviceReduction::DeviceReduction(const ReduceOp& op, c10::ScalarType type, const char* title)
    : op_(op.op_), type_(type) {
  TORCH_CHECK(isReducible(type), title, ": tensors of type ", type,
              " on CUDA can be moved between ranks but not reduced; convert them first");
  TORCH_CHECK(hasMeaning(op_, type), title, ": reduction ", static_cast<int>(op_),
              " (torch's number) has no meaning for tensors of type ", type);
  factor_ = factorOf(op, title);
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

void DeviceReduction::combine(const std::vector<at::Tensor>& parts, const at::Tensor& into) const {
  if (into.numel() == 0) return;
  const bool wide = isShort(type_);
  at::Tensor sum = wide ? at::empty_like(into, into.options().dtype(at::kFloat)) : into;
  add(sum, parts[0], parts[1]);
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
