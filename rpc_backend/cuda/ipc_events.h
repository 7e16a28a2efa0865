// Events that other processes can wait for, kept for further use: one for each message in flight.
//
// Threads: any. A lent event goes back to its pool, which it keeps alive, when it is dropped.
#pragma once

#include <c10/cuda/CUDAEvent.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace weft::rpc {

class IpcEvents : public std::enable_shared_from_this<IpcEvents> {
 public:
  struct Event {
    c10::cuda::CUDAEvent event{cudaEventDisableTiming | cudaEventInterprocess};
    std::string handle;
  };
  // One that nobody waits for any more. Throws c10::Error where the device has no such events.
  std::shared_ptr<Event> take(c10::DeviceIndex device);

 private:
  std::mutex mutex_;
  std::map<c10::DeviceIndex, std::vector<std::unique_ptr<Event>>> free_;
};

}  // namespace weft::rpc
