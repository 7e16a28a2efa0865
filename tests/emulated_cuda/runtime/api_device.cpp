// The CUDA runtime's functions on devices.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/emulated_cuda/runtime/device.h"
#include "tests/emulated_cuda/runtime/error.h"
#include "tests/emulated_cuda/runtime/memory.h"
#include "tests/emulated_cuda/runtime/operators.h"
#include "tests/emulated_cuda/runtime/settings.h"
#include "tests/emulated_cuda/runtime/stream.h"

namespace emulated {
namespace {
thread_local int current = 0;
}

int currentDevice() { return current; }

bool isDevice(int device) {
  return device >= 0 && static_cast<std::size_t>(device) < settings().devices.size();
}

int numberOnMachine(int device) { return settings().devices.at(static_cast<std::size_t>(device)); }

int deviceOfNumber(int number) {
  const auto& all = settings().devices;
  const auto found = std::find(all.begin(), all.end(), number);
  return found == all.end() ? currentDevice() : static_cast<int>(found - all.begin());
}

}  // namespace emulated

using emulated::result;

namespace {
constexpr int kVersion = 13000;
constexpr int kProcessors = 4;
}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(emulated::settings().devices.size());
  return *count == 0 ? result(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = emulated::current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!emulated::isDevice(device)) return result(cudaErrorInvalidDevice);
  emulated::current = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int device) {
  if (!emulated::isDevice(device)) return result(cudaErrorInvalidDevice);
  emulated::loadOperators();  // before the first operator is looked up
  std::memset(found, 0, sizeof(*found));
  std::snprintf(found->name, sizeof(found->name), "Emulated device %d",
                emulated::numberOnMachine(device));
  found->totalGlobalMem = emulated::settings().memory;
  found->major = 9;
  found->minor = 0;
  found->multiProcessorCount = kProcessors;
  found->warpSize = 32;
  found->maxThreadsPerBlock = 1024;
  found->maxThreadsPerMultiProcessor = 2048;
  found->sharedMemPerBlock = 48 << 10;
  found->regsPerBlock = 64 << 10;
  found->maxGridSize[0] = found->maxGridSize[1] = found->maxGridSize[2] = 65535;
  found->maxThreadsDim[0] = found->maxThreadsDim[1] = found->maxThreadsDim[2] = 1024;
  found->unifiedAddressing = 1;
  found->pciBusID = emulated::numberOnMachine(device) + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!emulated::isDevice(device)) return result(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = kProcessors;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrUnifiedAddressing:
      *value = 1;
      break;
    case cudaDevAttrIpcEventSupport:
      *value = emulated::settings().ipc;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (!emulated::isDevice(device)) return result(cudaErrorInvalidDevice);
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0",
                emulated::numberOnMachine(device) + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -1;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  emulated::waitForDevice(emulated::current);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!emulated::isDevice(device) || !emulated::isDevice(peer))
    return result(cudaErrorInvalidDevice);
  *can = device != peer && emulated::settings().peer_access;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (!emulated::isDevice(peer)) return result(cudaErrorInvalidDevice);
  return emulated::settings().peer_access ? cudaSuccess : result(cudaErrorPeerAccessUnsupported);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

// Of a header of its own.
extern "C" cudaError_t cudaProfilerStart() { return cudaSuccess; }
extern "C" cudaError_t cudaProfilerStop() { return cudaSuccess; }

// Torch looks up what it may want of the driver; the driver beside this runtime has it or not.
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  *function = ::dlsym(RTLD_DEFAULT, symbol);
  if (status != nullptr)
    *status =
        *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
