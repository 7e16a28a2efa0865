// ReduceOp.PREMUL_SUM: each rank's tensor is multiplied by a factor, then all are summed.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>

#include "c10d_plugin/tensors/contiguous_tensor.h"

namespace weft::process_group {

// The factor of PREMUL_SUM as a tensor of one element; undefined for every other reduction.
at::Tensor factorOf(const c10d::ReduceOp& op);

// The tensor's memory; where there is a factor, a multiplied copy of it, so that a failed
// operation has not changed the tensor.
ContiguousTensor premultiplied(const at::Tensor& tensor, const at::Tensor& factor,
                               ContiguousTensor::Use use);

}  // namespace weft::process_group
