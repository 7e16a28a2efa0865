#include "rpc_backend/options/device_maps.h"

#include <c10/util/Exception.h>

namespace weft::rpc {

c10::Device mapDevice(c10::Device device, const DeviceMap& map, const std::string& peer) {
  const auto found = map.find(device);
  if (found != map.end()) return found->second;
  TORCH_CHECK(device.is_cpu(), "weft: a tensor on ", device, " was to be sent to worker '", peer,
              "', but the device map for that worker does not name ", device,
              ". Move the tensor to CPU first, or call set_device_map('", peer, "', {'", device,
              "': <device there>}) on the RpcBackendOptions given to init_rpc.");
  return c10::Device(c10::kCPU);
}

}  // namespace weft::rpc
