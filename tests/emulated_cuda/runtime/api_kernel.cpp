// Kernels: their names are kept, and launching one is an error that names it. An operator that
// reaches a kernel of its own has no form here yet (operators/), and what it would leave is
// garbage.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <string>

#include "tests/emulated_cuda/runtime/error.h"

using emulated::result;

namespace {

struct Names {
  std::mutex mutex;
  std::map<const void*, std::string> of;
};

Names& names() {
  static auto& names = *new Names;
  return names;
}

cudaError_t refuse(const void* kernel) {
  const std::lock_guard lock(names().mutex);
  const auto found = names().of.find(kernel);
  const auto what = "kernel " + (found == names().of.end() ? std::string("?") : found->second);
  return emulated::unsupported(what.c_str());
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*,
                            void*, void*, int*) {
  const std::lock_guard lock(names().mutex);
  names().of.emplace(host, name);
}

unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, cudaStream_t) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) { return cudaSuccess; }

cudaError_t __cudaGetKernel(const void** kernel, const void* host) {
  *kernel = host;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(const void* kernel, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return refuse(kernel);
}
}

cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return refuse(kernel);
}
cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3, dim3, void**, std::size_t,
                                        cudaStream_t) {
  return refuse(kernel);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void**) {
  return refuse(kernel);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                          std::size_t) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   std::size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}
