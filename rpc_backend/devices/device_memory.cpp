#include "rpc_backend/devices/device_memory.h"

#include <atomic>

namespace weft::rpc {

namespace {
std::atomic<MakeDeviceMemory> registered{nullptr};
}  // namespace

void registerDeviceMemory(MakeDeviceMemory make) noexcept { registered = make; }

std::unique_ptr<DeviceMemory> makeDeviceMemory() {
  const MakeDeviceMemory make = registered;
  return make == nullptr ? nullptr : make();
}

}  // namespace weft::rpc
