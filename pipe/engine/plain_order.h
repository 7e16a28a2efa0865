// Runs a mini-batch stage after stage on the calling thread, in autograd's ordinary graph.
//
// This serves gradients that have gradients themselves (create_graph), and cases in which the
// stages' own graphs would lose something: transforms of torch.func, forward-mode AD, parameters
// with a history or without a shape yet, torch.jit.trace, and Python's dispatch modes. Stages do
// not overlap.
#pragma once

#include <vector>

#include "pipe/engine/mini_batch.h"

namespace weft::pipe {

// True on a thread where torch.func transforms what is run, or forward-mode AD is on.
bool isTransformed();
// True on a thread where each operation is to be seen where it is called: torch.jit traces it, or a
// dispatch mode of Python is on, which is one object that several threads must not use at once.
bool isWatched();

// The whole forward; the result is autograd's own.
Batch forwardInPlainOrder(PipelineContext& pipeline, const ForwardInput& input);

// The gradients of `inputs` and of the parameters, in this order, with a graph (create_graph).
// `inputs` are the mini-batch's, with their history. Random numbers are those of the first run.
// Costs a forward; stages see it as a recomputation.
std::vector<at::Tensor> gradientsWithGraph(const MiniBatch& run,
                                           const std::vector<at::Tensor>& inputs,
                                           const std::vector<at::Tensor>& grads,
                                           const Wanted& wanted);

}  // namespace weft::pipe
