#include "c10d_plugin/cuda/device/device_memory.h"

#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

namespace weft::process_group {

namespace {

// An error is taken from the runtime, which would give it to the next caller otherwise.
void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  TORCH_CHECK(false, "weft: ", what, ": ", cudaGetErrorString(error),
              "; ranks that share a device need CUDA IPC");
}

constexpr unsigned kFlags = cudaEventDisableTiming | cudaEventInterprocess;

}  // namespace

DeviceMemory::DeviceMemory(c10::DeviceIndex device, std::size_t bytes)
    : device_(device), bytes_(bytes), own_(true) {
  const c10::cuda::CUDAGuard guard(device);
  // Not from torch's allocator, whose expandable segments have handles of another kind.
  if (cudaMalloc(&data_, bytes) == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  c10::cuda::CUDACachingAllocator::emptyCache();
  const cudaError_t error = cudaMalloc(&data_, bytes);
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  TORCH_CHECK(false, "weft: the process group cannot have a staging buffer of ", bytes,
              " bytes on cuda:", static_cast<int>(device), ": ", cudaGetErrorString(error),
              "; weft.ProcessGroupOptions(staging_bytes=…) makes it smaller");
}

DeviceMemory::DeviceMemory(c10::DeviceIndex device, std::size_t bytes,
                           const cudaIpcMemHandle_t& handle)
    : device_(device), bytes_(bytes), own_(false) {
  const c10::cuda::CUDAGuard guard(device);
  check(cudaIpcOpenMemHandle(&data_, handle, cudaIpcMemLazyEnablePeerAccess),
        "cannot open another rank's staging buffer");
}

DeviceMemory::~DeviceMemory() {
  const c10::cuda::CUDAGuard guard(device_);
  C10_CUDA_CHECK_WARN(own_ ? cudaFree(data_) : cudaIpcCloseMemHandle(data_));
}

cudaIpcMemHandle_t DeviceMemory::handle() const {
  const c10::cuda::CUDAGuard guard(device_);
  cudaIpcMemHandle_t handle{};
  check(cudaIpcGetMemHandle(&handle, data_), "cannot share device memory");
  return handle;
}

at::Tensor DeviceMemory::view(std::size_t offset, std::size_t bytes, c10::ScalarType type) const {
  TORCH_INTERNAL_ASSERT(offset + bytes <= bytes_);
  const c10::Device device(c10::kCUDA, device_);
  const auto count = static_cast<std::int64_t>(bytes / c10::elementSize(type));
  // The device is stated: another rank's memory may be on another device, which this one reads.
  return at::for_blob(static_cast<std::byte*>(data_) + offset, {count})
      .options(at::TensorOptions(type).device(device))
      .target_device(device)
      .make_tensor();
}

SharedEvents::SharedEvents(c10::DeviceIndex device)
    : events_{at::cuda::CUDAEvent(kFlags), at::cuda::CUDAEvent(kFlags)} {
  const c10::cuda::CUDAGuard guard(device);
  static_cast<void>(handles());  // creates them, on this device
}

SharedEvents::SharedEvents(c10::DeviceIndex device, const Handles& handles)
    : events_{at::cuda::CUDAEvent(device, &handles[0]), at::cuda::CUDAEvent(device, &handles[1])} {}

SharedEvents::Handles SharedEvents::handles() {
  Handles handles{};
  for (std::size_t half = 0; half < handles.size(); ++half)
    events_[half].ipc_handle(&handles[half]);
  return handles;
}

}  // namespace weft::process_group
