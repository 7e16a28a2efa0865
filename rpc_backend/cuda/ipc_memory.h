// IpcMemory: DeviceMemory by CUDA IPC, with the allocator's own handles.
//
// What is opened of a peer (memory and events) stays open for its next messages, up to a limit,
// until it is forgotten: opening costs more than a copy of megabytes. What its owner has given back
// to the driver meanwhile stays reserved until the next message of that owner.
//
// One thread at a time opens and closes; closing waits for the device.
#pragma once

#include <c10/cuda/CUDAEvent.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rpc_backend/cuda/ipc_events.h"
#include "rpc_backend/cuda/ipc_token.h"
#include "rpc_backend/devices/device_memory.h"

namespace weft::rpc {

class IpcMemory final : public DeviceMemory {
 public:
  IpcMemory();

  Export exportTensors(std::span<const at::Tensor> tensors) override;
  std::vector<at::Tensor> copyFrom(worker_id_t peer, std::span<const std::byte> token,
                                   std::span<const DeviceTensorSpec> wanted,
                                   std::shared_ptr<void> borrowed) override;
  void probe(worker_id_t peer, std::span<const std::byte> token, std::int64_t expected) override;
  void forget(worker_id_t peer) override;

 private:
  // A token's things, opened here.
  struct Opened {
    std::vector<c10::DeviceIndex> devices;
    std::vector<std::shared_ptr<c10::cuda::CUDAEvent>> events;  // of the devices
    std::vector<std::shared_ptr<void>> segments;
  };
  struct OfPeer {
    std::uint64_t generation = 0;                           // the latest of its tokens
    std::map<std::string, std::shared_ptr<void>> segments;  // by handle
    std::map<std::string, std::shared_ptr<c10::cuda::CUDAEvent>> events;

    // Closes what a token of the latest generation may name anew, and all where it is too much.
    void closeStale(std::uint64_t latest);
  };
  Opened open(worker_id_t peer, const IpcToken& token);
  c10::DeviceIndex deviceOf(const std::string& bus_id) const;

  const std::vector<std::string> bus_ids_;  // of the devices here
  const std::shared_ptr<IpcEvents> events_ = std::make_shared<IpcEvents>();
  std::mutex mutex_;  // also held while stale memory is closed
  std::map<worker_id_t, OfPeer> peers_;
};

}  // namespace weft::rpc
