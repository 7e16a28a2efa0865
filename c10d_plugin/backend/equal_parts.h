// all_gather and reduce_scatter of one large tensor in equal parts, one for each rank: alone, or as
// a part of a coalesced call. Both throw what goes wrong.
//
// Threads: the one that runs the operation of `context`.
#pragma once

#include <ATen/core/Tensor.h>

#include "c10d_plugin/engine/op_context.h"
#include "c10d_plugin/tensors/reduce_op.h"

namespace weft::process_group {

// `output` has room for every rank's `input`, in the order of the ranks; they may overlap.
void gatherParts(OpContext& context, const at::Tensor& output, const at::Tensor& input);
// `output`: this rank's part of the sum, or what `how` says, of all ranks' `input`; they may
// overlap.
void reduceParts(OpContext& context, const at::Tensor& output, const at::Tensor& input,
                 const TensorReduction& how);

}  // namespace weft::process_group
