// Device memory and events that other processes of the host open (CUDA IPC).
//
// Threads: one at a time. The destructors wait for the device, as cudaFree does, so what a stuck
// stream may still use must be leaked. Failure: c10::Error of CUDA's, or one that says what IPC
// lacks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

namespace weft::process_group {

class DeviceMemory {
 public:
  // Memory of this process.
  DeviceMemory(c10::DeviceIndex device, std::size_t bytes);
  // Memory of another process, which must outlive this.
  DeviceMemory(c10::DeviceIndex device, std::size_t bytes, const cudaIpcMemHandle_t& handle);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  cudaIpcMemHandle_t handle() const;
  // [offset, offset + bytes) as elements of a type; does not keep the memory alive.
  at::Tensor view(std::size_t offset, std::size_t bytes, c10::ScalarType type) const;

 private:
  const c10::DeviceIndex device_;
  const std::size_t bytes_;
  const bool own_;
  void* data_ = nullptr;
};

// Two events, one for each half of a buffer, that a process records and others wait for.
class SharedEvents {
 public:
  using Handles = std::array<cudaIpcEventHandle_t, 2>;

  explicit SharedEvents(c10::DeviceIndex device);                 // of this process
  SharedEvents(c10::DeviceIndex device, const Handles& handles);  // of another one

  Handles handles();
  // The stream waits for the last record that the event's owner has asked for before this call.
  void block(std::size_t half, const c10::cuda::CUDAStream& stream) { events_[half].block(stream); }
  void record(std::size_t half, const c10::cuda::CUDAStream& stream) {
    events_[half].record(stream);
  }

 private:
  std::array<at::cuda::CUDAEvent, 2> events_;
};

}  // namespace weft::process_group
