// DeviceMemory: tensors in this process's device memory as another process of the host reads them,
// device to device. libweft.so knows no CUDA; libweft_cuda.so registers how it is done.
//
// A token says where the tensors of one message are. It is bytes that only the implementation
// reads: on the other side the one of another process.
//
// Threads: any. Failure: every member but forget() may throw c10::Error; what it had begun is then
// undone or ends by itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rpc_backend/core/torch_names.h"
#include "transport/base/api.h"

namespace weft::rpc {

// A tensor to be made of a peer's: dense, its elements in the order of the peer's.
struct DeviceTensorSpec {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device{c10::kCUDA, 0};  // where it is to be made
};

class DeviceMemory {
 public:
  struct Export {
    std::vector<std::byte> token;
    std::shared_ptr<void> kept;  // the memory and the events, which must live until they are read
  };

  virtual ~DeviceMemory() = default;

  // Exports dense tensors on devices. Their bytes are read only after the work that the current
  // streams have been given so far.
  virtual Export exportTensors(std::span<const at::Tensor> tensors) = 0;

  // Copies the tensors of a token of `peer`, on the current streams of the devices: it returns when
  // the copies are queued. `borrowed` is dropped when they are done, by a thread that must not call
  // CUDA; or before this throws.
  virtual std::vector<at::Tensor> copyFrom(worker_id_t peer, std::span<const std::byte> token,
                                           std::span<const DeviceTensorSpec> wanted,
                                           std::shared_ptr<void> borrowed) = 0;

  // Reads the one number that a token of `peer` names, and waits for it; throws unless it is
  // `expected`.
  virtual void probe(worker_id_t peer, std::span<const std::byte> token, std::int64_t expected) = 0;

  // Forgets what is kept open of that peer's memory. May wait for copies from there.
  virtual void forget(worker_id_t peer) = 0;
};

using MakeDeviceMemory = std::unique_ptr<DeviceMemory> (*)();

// For libweft_cuda.so, when it is loaded.
WEFT_API void registerDeviceMemory(MakeDeviceMemory make) noexcept;
// Null while none is registered.
std::unique_ptr<DeviceMemory> makeDeviceMemory();

}  // namespace weft::rpc
