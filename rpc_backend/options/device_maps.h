// Which device of a peer a device here maps to. Any thread.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <unordered_map>

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

using DeviceMaps = std::unordered_map<std::string, DeviceMap>;

// Where `device` (of this process) lands on `peer`. CPU maps to CPU unless the map says
// otherwise. Throws c10::Error for an accelerator that the map does not name.
c10::Device mapDevice(c10::Device device, const DeviceMap& map, const std::string& peer);

}  // namespace weft::rpc
