// A backward that comes from outside of the pipeline: what it asks for, and the gradients that
// torch.distributed.autograd wants in its context instead of in `.grad`.
//
// Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/base/api.h"

namespace weft::pipe {

enum class BackwardKind : std::uint8_t {
  kAll,          // backward(): gradients of all leaves
  kInputs,       // torch.autograd.grad(), backward(inputs=…): only those that were asked for
  kDistributed,  // torch.distributed.autograd.backward()
};

// Which kind of backward runs the node that calls this. `leaf` wants a gradient, and only this node
// leads to it.
WEFT_API BackwardKind backwardKind(const at::Tensor& leaf);

// The number of the context that this thread is in.
WEFT_API std::optional<std::int64_t> currentContext();

// Before a backward in the context sends to `workers`: they then learn of the context's end.
// Throws c10::Error if it has ended, or if this is the backward of another one.
WEFT_API void joinContext(std::int64_t context, const std::vector<std::string>& workers);

// The leaves that want gradients and that `outputs` depend on.
WEFT_API std::vector<at::Tensor> leavesOf(const std::vector<at::Tensor>& outputs);

// Adds gradients of leaves to the context of this number at this worker; undefined ones not.
WEFT_API void addToContext(std::int64_t context, const std::vector<at::Tensor>& leaves,
                           const std::vector<at::Tensor>& gradients);

}  // namespace weft::pipe
