// Tensors in what a stage gives that the engine passes on whole: Python objects of classes that
// torch.utils._pytree does not know, and objects of TorchScript classes. No gradient can come back
// along such a tensor.
//
// Threads: any, without the GIL.
#pragma once

#include <cstddef>

#include "pipe/data/batch.h"

namespace weft::pipe {

// Throws if one of them has a graph. `structure` (may be nullptr): of a run with a graph.
void refuseHiddenGraphs(const Structure* structure, std::size_t stage);

// Whether one of them may have a graph when the stage runs again. `structure`: of a run without.
bool mayHideGraph(const Structure* structure);

}  // namespace weft::pipe
