#include "c10d_plugin/tensors/reduce_op.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <cstdint>

namespace weft::process_group {

using collectives::Element;
using collectives::Reduction;

Element elementOf(c10::ScalarType type) noexcept {
  using c10::ScalarType;
  switch (type) {
    case ScalarType::Bool:
      return Element::kBool;
    case ScalarType::Byte:
      return Element::kUint8;
    case ScalarType::Char:
      return Element::kInt8;
    case ScalarType::Short:
      return Element::kInt16;
    case ScalarType::Int:
      return Element::kInt32;
    case ScalarType::Long:
      return Element::kInt64;
    case ScalarType::UInt16:
      return Element::kUint16;
    case ScalarType::UInt32:
      return Element::kUint32;
    case ScalarType::UInt64:
      return Element::kUint64;
    case ScalarType::Half:
      return Element::kFloat16;
    case ScalarType::BFloat16:
      return Element::kBfloat16;
    case ScalarType::Float:
      return Element::kFloat32;
    case ScalarType::Double:
      return Element::kFloat64;
    case ScalarType::ComplexFloat:
      return Element::kComplex64;
    case ScalarType::ComplexDouble:
      return Element::kComplex128;
    default:
      return Element::kBytes;
  }
}

namespace {

Reduction reductionNamed(c10d::ReduceOp::RedOpType op, const char* operation) {
  using c10d::ReduceOp;
  switch (op) {
    case ReduceOp::SUM:
    case ReduceOp::PREMUL_SUM:
      return Reduction::kSum;
    case ReduceOp::AVG:
      return Reduction::kAverage;
    case ReduceOp::PRODUCT:
      return Reduction::kProduct;
    case ReduceOp::MIN:
      return Reduction::kMin;
    case ReduceOp::MAX:
      return Reduction::kMax;
    case ReduceOp::BAND:
      return Reduction::kBitAnd;
    case ReduceOp::BOR:
      return Reduction::kBitOr;
    case ReduceOp::BXOR:
      return Reduction::kBitXor;
    default:
      TORCH_CHECK(false, operation, ": unknown reduction ", static_cast<int>(op));
  }
}

// What integers are multiplied by: a whole number as such, because a product in float64 would lose
// their bits beyond 53; any other in float64, whatever type it came in.
at::Tensor factorOfIntegers(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  const bool whole = value == std::trunc(value) && value >= -kLimit && value < kLimit;
  return whole ? at::scalar_tensor(static_cast<std::int64_t>(value), at::kLong)
               : at::scalar_tensor(value, at::kDouble);
}

at::Tensor factorOf(const c10d::ReduceOp& op, c10::ScalarType type, const char* operation) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return {};
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(supplement != nullptr,
              "weft: PREMUL_SUM needs a factor; make it with "
              "torch.distributed._make_nccl_premul_sum");
  const at::Tensor given = supplement->tensor_factor;
  const at::Tensor factor = given.defined()
                                ? given.reshape({}).cpu()
                                : at::scalar_tensor(supplement->double_factor, at::kDouble);
  TORCH_CHECK(!factor.is_complex() || c10::isComplexType(type), operation,
              ": PREMUL_SUM cannot multiply tensors of type ", type, " by a complex factor",
              "; torch.distributed passes complex tensors as pairs of real numbers, so multiply "
              "them before a SUM");
  if (factor.is_floating_point() && c10::isIntegralType(type, false))
    return factorOfIntegers(factor.item<double>());
  // The caller may change its tensor while the operation is under way.
  return given.defined() ? copyOf(factor) : factor;
}

}  // namespace

ContiguousTensor TensorReduction::memoryOf(const at::Tensor& tensor,
                                           ContiguousTensor::Use use) const {
  if (!factor.defined()) return {tensor, use};
  checkMemory(tensor);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // In one dimension at least: a tensor of none would not decide the product's type over the
  // factor, and some types have no common one.
  const at::Tensor rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
  const at::Tensor product = at::mul(rows, factor).to(tensor.scalar_type()).contiguous();
  return {product.reshape(tensor.sizes()),
          use == ContiguousTensor::Use::kReadWrite ? tensor : at::Tensor()};
}

TensorReduction reductionOf(const c10d::ReduceOp& op, c10::ScalarType type, const char* operation) {
  const Reduction reduction = reductionNamed(op.op_, operation);
  const Element element = elementOf(type);
  TORCH_CHECK(element != Element::kBytes, operation, ": tensors of type ", type,
              " can be moved between ranks but not reduced; convert them first");
  TORCH_CHECK(collectives::canReduce(element, reduction), operation, ": ",
              collectives::toString(reduction), " has no meaning for tensors of type ", type);
  return {reduction, factorOf(op, type, operation)};
}

}  // namespace weft::process_group
