// Kernels: their names are kept, and launching one is an error that names it. An operator that
// reaches a kernel of its own has no form here yet (operators/), and what it would leave is
// garbage. The one of torch.cuda._sleep() is late work that does nothing else.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "tests/emulated_cuda/runtime/error.h"
#include "tests/emulated_cuda/runtime/stream.h"

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

std::string nameOf(const void* kernel) {
  const std::lock_guard lock(names().mutex);
  const auto found = names().of.find(kernel);
  return found == names().of.end() ? "?" : found->second;
}

// Of a device of 1 GHz, which never sleeps long.
cudaError_t sleep(void** arguments, cudaStream_t handle) {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::milliseconds(20);
  auto* stream = emulated::streamOf(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  const std::chrono::nanoseconds cycles(*static_cast<const std::int64_t*>(arguments[0]));
  stream->launch({}, [time = std::min(cycles, kLongest)] { std::this_thread::sleep_for(time); });
  return cudaSuccess;
}

cudaError_t launch(const void* kernel, void** arguments, cudaStream_t stream) {
  const std::string name = nameOf(kernel);
  if (name.find("11spin_kernel") != std::string::npos) return sleep(arguments, stream);
  return emulated::unsupported(("kernel " + name).c_str());
}

struct Configuration {
  dim3 grid, block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;
};

thread_local Configuration pushed;

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

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                     cudaStream_t stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *static_cast<cudaStream_t*>(stream) = pushed.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(const void** kernel, const void* host) {
  *kernel = host;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(const void* kernel, dim3, dim3, void** arguments, std::size_t,
                               cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}
}

cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void** arguments, std::size_t,
                             cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3, dim3, void** arguments,
                                        std::size_t, cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* kernel,
                                void** arguments) {
  return launch(kernel, arguments, configuration->stream);
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
