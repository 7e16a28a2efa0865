// What torch links and Weft has no use for: graphs, stream-ordered allocation, symbols. Each is an
// error that names the function.
#include <cuda_runtime_api.h>

#include <cstddef>

#include "tests/emulated_cuda/runtime/error.h"

#define EMULATED_UNSUPPORTED(name, ...) \
  cudaError_t name(__VA_ARGS__) { return emulated::unsupported(#name); }

EMULATED_UNSUPPORTED(cudaDeviceGetDefaultMemPool, cudaMemPool_t*, int)
EMULATED_UNSUPPORTED(cudaFreeAsync, void*, cudaStream_t)
EMULATED_UNSUPPORTED(cudaGetSymbolAddress, void**, const void*)
EMULATED_UNSUPPORTED(cudaGraphDebugDotPrint, cudaGraph_t, const char*, unsigned)
EMULATED_UNSUPPORTED(cudaGraphDestroy, cudaGraph_t)
EMULATED_UNSUPPORTED(cudaGraphExecDestroy, cudaGraphExec_t)
EMULATED_UNSUPPORTED(cudaGraphGetNodes, cudaGraph_t, cudaGraphNode_t*, std::size_t*)
EMULATED_UNSUPPORTED(cudaGraphInstantiateWithFlags, cudaGraphExec_t*, cudaGraph_t,
                     unsigned long long)
EMULATED_UNSUPPORTED(cudaGraphLaunch, cudaGraphExec_t, cudaStream_t)
EMULATED_UNSUPPORTED(cudaMallocAsync, void**, std::size_t, cudaStream_t)
EMULATED_UNSUPPORTED(cudaMemPoolGetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
EMULATED_UNSUPPORTED(cudaMemPoolSetAccess, cudaMemPool_t, const cudaMemAccessDesc*, std::size_t)
EMULATED_UNSUPPORTED(cudaMemPoolSetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
EMULATED_UNSUPPORTED(cudaMemPoolTrimTo, cudaMemPool_t, std::size_t)
EMULATED_UNSUPPORTED(cudaMemcpy2DAsync, void*, std::size_t, const void*, std::size_t, std::size_t,
                     std::size_t, cudaMemcpyKind, cudaStream_t)
EMULATED_UNSUPPORTED(cudaMemcpyToSymbol, const void*, const void*, std::size_t, std::size_t,
                     cudaMemcpyKind)
EMULATED_UNSUPPORTED(cudaStreamBeginCapture, cudaStream_t, cudaStreamCaptureMode)
EMULATED_UNSUPPORTED(cudaStreamEndCapture, cudaStream_t, cudaGraph_t*)
EMULATED_UNSUPPORTED(cudaGraphNodeGetDependencies, cudaGraphNode_t, cudaGraphNode_t*,
                     cudaGraphEdgeData*, std::size_t*)
