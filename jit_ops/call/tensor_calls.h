// What operators.cpp registers besides its own operators. Each is called once in a process.
#pragma once

namespace torch {
class Library;
}

namespace weft::ops {

// torch.ops.weft.call_tensors: a call that torch.compile and torch.export can trace. Contract:
// docs/guide/published_modules.md#compiled-and-exported.
void defineTensorCalls(torch::Library& library);

}  // namespace weft::ops
