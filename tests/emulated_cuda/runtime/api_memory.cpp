// The CUDA runtime's functions on memory.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstring>
#include <vector>

#include "tests/emulated_cuda/runtime/access_check.h"
#include "tests/emulated_cuda/runtime/device.h"
#include "tests/emulated_cuda/runtime/error.h"
#include "tests/emulated_cuda/runtime/memory.h"
#include "tests/emulated_cuda/runtime/operators.h"
#include "tests/emulated_cuda/runtime/report.h"
#include "tests/emulated_cuda/runtime/settings.h"
#include "tests/emulated_cuda/runtime/stream.h"

using emulated::Access;
using emulated::Allocation;
using emulated::result;

namespace {

bool isDeviceKind(const Allocation& found) {
  return found.kind == Allocation::Kind::kDevice || found.kind == Allocation::Kind::kImported;
}

// A range that no live allocation holds though the call says that it is a device's.
cudaError_t badUse(const char* operation, const void* address, std::size_t bytes) {
  emulated::reportBadUse(operation, address, bytes);
  return result(cudaErrorInvalidValue);
}

// What work on [address, address + bytes) touches of memory that the runtime knows; nothing for
// pageable memory of the host.
void note(std::vector<Access>& accesses, const void* address, std::size_t bytes, bool write) {
  if (emulated::findAllocation(address))
    accesses.push_back({reinterpret_cast<std::uintptr_t>(address), bytes, write});
}

bool reachesPast(const void* address, std::size_t bytes) {
  return emulated::findAllocation(address) && !emulated::isLive(address, bytes);
}

// What comes next on the stream waits for emulatedCudaHoldCopy(0).
void hold(emulated::Stream& stream) {
  emulated::holds() = true;
  stream.enqueue([] { emulated::holds().wait(true); });
}

// Copies in stream order. A copy from or to pageable memory ends before the call does, as CUDA's.
cudaError_t copy(void* to, const void* from, std::size_t bytes, emulated::Stream* stream) {
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  ++emulated::copies();
  if (emulated::fails(emulated::failingCopy())) return result(cudaErrorUnknown);
  if (reachesPast(to, bytes)) return badUse("copy to", to, bytes);
  if (reachesPast(from, bytes)) return badUse("copy from", from, bytes);
  std::vector<Access> accesses;
  note(accesses, from, bytes, false);
  note(accesses, to, bytes, true);
  const bool pageable = accesses.size() < 2;
  if (emulated::fails(emulated::heldCopy())) hold(*stream);
  stream->launch(accesses, [=] { std::memmove(to, from, bytes); });
  if (pageable) stream->wait();
  return cudaSuccess;
}

bool namesDevice(cudaMemcpyKind kind, bool source) {
  return kind == cudaMemcpyDeviceToDevice ||
         kind == (source ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice);
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 emulated::Stream* stream) {
  if (namesDevice(kind, true) && !emulated::findAllocation(from))
    return badUse("copy from", from, bytes);
  if (namesDevice(kind, false) && !emulated::findAllocation(to))
    return badUse("copy to", to, bytes);
  return copy(to, from, bytes, stream);
}

cudaError_t fill(void* at, int value, std::size_t bytes, emulated::Stream* stream) {
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (!emulated::isLive(at, bytes)) return badUse("memset", at, bytes);
  const Access access{reinterpret_cast<std::uintptr_t>(at), bytes, true};
  stream->launch({&access, 1}, [=] { std::memset(at, value, bytes); });
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  emulated::loadOperators();
  *address = emulated::allocateDevice(emulated::currentDevice(), bytes);
  return *address == nullptr ? result(cudaErrorMemoryAllocation) : cudaSuccess;
}

// Freeing waits for the memory's device. CUDA says that it may, drivers do, and torch's allocator
// relies on it. It waits for no other device, so what streams of those still do is reported.
cudaError_t cudaFree(void* address) {
  if (address == nullptr) return cudaSuccess;
  const auto found = emulated::findAllocation(address);
  if (!found) return badUse("cudaFree", address, 0);
  emulated::waitForDevice(found->device);
  return emulated::release(address) ? cudaSuccess : result(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  *address = emulated::allocatePinned(emulated::currentDevice(), bytes);
  return *address == nullptr ? result(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaFreeHost(void* address) { return cudaFree(address); }

cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned) {
  emulated::registerHost(emulated::currentDevice(), address, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
  return emulated::release(address) ? cudaSuccess : result(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = emulated::bytesFree(emulated::currentDevice());
  *total = emulated::settings().memory;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address) {
  std::memset(found, 0, sizeof(*found));
  found->device = -2;
  found->type = cudaMemoryTypeUnregistered;
  const auto allocation = emulated::findAllocation(address);
  if (!allocation) return cudaSuccess;
  found->device = allocation->device;
  found->type = isDeviceKind(*allocation) ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  found->devicePointer = const_cast<void*>(address);
  if (!isDeviceKind(*allocation)) found->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return copy(to, from, bytes, kind, emulated::streamOf(stream));
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  auto* stream = emulated::streamOf(nullptr);
  const auto error = copy(to, from, bytes, kind, stream);
  if (error == cudaSuccess) stream->wait();
  return error;
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                cudaStream_t stream) {
  return copy(to, from, bytes, cudaMemcpyDeviceToDevice, emulated::streamOf(stream));
}

cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t stream) {
  return fill(at, value, bytes, emulated::streamOf(stream));
}

cudaError_t cudaMemset(void* at, int value, std::size_t bytes) {
  return fill(at, value, bytes, emulated::streamOf(nullptr));
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  if (!emulated::settings().ipc) return result(cudaErrorNotSupported);
  const auto made = emulated::exportMemory(address);
  if (!made) return result(cudaErrorInvalidValue);
  static_assert(sizeof(*made) <= sizeof(*handle));
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &*made, sizeof(*made));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned) {
  emulated::loadOperators();
  if (!emulated::settings().ipc) return result(cudaErrorNotSupported);
  emulated::MemoryHandle made{};
  std::memcpy(&made, &handle, sizeof(made));
  *address = emulated::importMemory(made);
  return *address == nullptr ? result(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
  const auto found = emulated::findAllocation(address);
  if (!found) return result(cudaErrorInvalidValue);
  emulated::waitForDevice(found->device);
  return emulated::closeImported(address) ? cudaSuccess : result(cudaErrorInvalidValue);
}
