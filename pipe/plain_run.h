// The mini-batch once more, stage after stage on the calling thread, in autograd's ordinary graph:
// for gradients that have gradients themselves.
#pragma once

#include <vector>

#include "pipe/mini_batch.h"

namespace weft::pipe {

// The gradients of `inputs` and of the parameters, in this order, with a graph (create_graph).
// `inputs` are the mini-batch's, with their history. Random numbers are those of the first run.
// Costs a forward; stages see it as a recomputation.
std::vector<at::Tensor> gradientsWithGraph(MiniBatch& batch, const std::vector<at::Tensor>& inputs,
                                           const std::vector<at::Tensor>& grads,
                                           const Wanted& wanted);

}  // namespace weft::pipe
