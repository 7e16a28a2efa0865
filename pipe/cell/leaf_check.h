// Finds tensors that a stage uses and that would silently get no gradient.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>

#include "third_party/torch/torch_compat.h"

namespace weft::pipe {

// Walks a stage's graph from its outputs to its ends, which are `input` (may be none) and
// `boundary`. Throws if it comes to a leaf: that is neither an input nor a registered parameter.
void refuseUnregisteredLeaves(const torch::autograd::edge_list& outputs, const NodePtr& input,
                              const torch::autograd::edge_list& boundary, std::size_t stage);

}  // namespace weft::pipe
