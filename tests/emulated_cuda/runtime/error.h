// The last error of each thread, as cudaGetLastError() gives it.
#pragma once

#include <cuda_runtime_api.h>

namespace emulated {

// Remembers an error for this thread and returns it; success is returned alone.
cudaError_t result(cudaError_t error);

// Says on standard error what the emulation cannot do, and returns cudaErrorNotSupported.
cudaError_t unsupported(const char* what);

}  // namespace emulated
