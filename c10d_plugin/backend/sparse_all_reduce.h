// all_reduce of sparse COO tensors: every rank gathers all ranks' entries and sums them.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace weft::process_group {

class OpContext;

// Throws c10::Error unless it is a sum of a sparse COO tensor on the CPU.
void checkSparse(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* title);
// The result replaces the tensor's entries, coalesced. Throws on all ranks if their shapes differ.
void sparseAllReduce(OpContext& context, const at::Tensor& tensor, const char* title);

}  // namespace weft::process_group
