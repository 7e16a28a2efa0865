// The guard by which torch.compile works with CUDA tensors' shapes on a machine without a GPU.
#pragma once

namespace weft::pipe {

// As torch._C._ensureCUDADeviceGuardSet(): where torch has CUDA and the machine has no GPU, puts a
// guard that does nothing in CUDA's place. torch 2.11 owns that guard by the thread that asks first
// and leaves it in the registry when the thread ends, for any later user to crash on; this one
// stays. Any thread.
void ensureCudaDeviceGuard();

}  // namespace weft::pipe
