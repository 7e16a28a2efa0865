// CUDA tensors: torch's own NCCL backend, kept out of libweft.so, which links libtorch_cpu only.
#pragma once

#include "c10d_plugin/backend.h"

namespace weft::process_group {

// Loads libweft_cuda.so, which lies beside libweft.so, and makes a NCCL backend for the same ranks.
// Throws c10::Error that says what is missing.
c10::intrusive_ptr<c10d::Backend> makeCudaBackend(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size,
                                                  const WeftBackend::Options& options);

}  // namespace weft::process_group
