// torch.ops.weft.call_tensors: a call that torch.compile and torch.export can trace, with
// gradients. Contract: docs/guide/published_modules.md#compiled-and-exported.
#pragma once

namespace torch {
class Library;
}

namespace weft::ops {

// Defines it, and the two operators that its gradients are made of, in the library "weft". Once in
// a process.
void defineTensorCalls(torch::Library& library);

}  // namespace weft::ops
