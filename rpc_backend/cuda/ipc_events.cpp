#include "rpc_backend/cuda/ipc_events.h"

#include <utility>

namespace weft::rpc {

std::shared_ptr<IpcEvents::Event> IpcEvents::take(c10::DeviceIndex device) {
  std::unique_ptr<Event> event;
  {
    const std::lock_guard lock(mutex_);
    auto& free = free_[device];
    if (!free.empty()) {
      event = std::move(free.back());
      free.pop_back();
    }
  }
  if (event == nullptr) {
    event = std::make_unique<Event>();
    event->event.create(device);
    cudaIpcEventHandle_t handle;
    event->event.ipc_handle(&handle);
    event->handle.assign(handle.reserved, sizeof(handle.reserved));
  }
  return {event.release(), [pool = shared_from_this(), device](Event* used) {
            const std::lock_guard lock(pool->mutex_);
            pool->free_[device].emplace_back(used);
          }};
}

}  // namespace weft::rpc
