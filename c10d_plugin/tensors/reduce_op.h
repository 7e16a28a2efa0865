// Torch's types and reductions as Element and Reduction.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/tensors/contiguous_tensor.h"
#include "transport/base/api.h"

namespace weft::process_group {

// kBytes for types that Weft moves but does not reduce (float8).
collectives::Element elementOf(c10::ScalarType type) noexcept;

// How a ReduceOp is carried out. With PREMUL_SUM each rank's tensor is multiplied by a factor, then
// all are summed.
struct TensorReduction {
  collectives::Reduction reduction = collectives::Reduction::kSum;
  at::Tensor factor;  // of one element, its own; undefined for every other reduction

  // The tensor's memory; where there is a factor, a multiplied copy of it, so that a failed
  // operation has not changed the tensor.
  ContiguousTensor memoryOf(const at::Tensor& tensor, ContiguousTensor::Use use) const;
};

// Throws c10::Error, naming both, for a type that has no such reduction.
WEFT_API TensorReduction reductionOf(const c10d::ReduceOp& op, c10::ScalarType type,
                                     const char* operation);

}  // namespace weft::process_group
