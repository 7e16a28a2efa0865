// A mini-batch stage after stage on the calling thread, in autograd's ordinary graph.
//
// So it is run for gradients that have gradients themselves (create_graph), and where the graphs of
// a pipeline's own would lose what is to be carried through them: under the transforms of
// torch.func, in forward-mode AD, and where parameters have a history or no shape yet. Nothing is
// computed twice and nothing overlaps then.
#pragma once

#include <vector>

#include "pipe/engine/forward_run.h"

namespace weft::pipe {

// True on a thread where torch.func transforms what is run, or forward-mode AD is on.
bool isTransformed();

// The whole forward; the result is autograd's own.
Batch plainForward(PipelineContext& pipeline, const ForwardInput& input);

// The gradients of `inputs` and of the parameters, in this order, with a graph (create_graph).
// `inputs` are the mini-batch's, with their history. Random numbers are those of the first run.
// Costs a forward; stages see it as a recomputation.
std::vector<at::Tensor> gradientsWithGraph(ForwardRun& batch, const std::vector<at::Tensor>& inputs,
                                           const std::vector<at::Tensor>& grads,
                                           const Wanted& wanted);

}  // namespace weft::pipe
