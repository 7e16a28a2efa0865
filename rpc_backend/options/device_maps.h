// Which device of a peer a device here maps to, and the streams of a call.
//
// A message's tensors are copied on the streams that are current when it is made or read, so the
// copies see work queued before.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

using DeviceMaps = std::unordered_map<std::string, DeviceMap>;

// Where `device` (of this process) lands on `peer`. CPU maps to CPU unless the map says
// otherwise. Throws c10::Error for an accelerator that the map does not name.
c10::Device mapDevice(c10::Device device, const DeviceMap& map, const std::string& peer);

// One stream of the pool per device; empty for no devices. Any thread.
std::vector<c10::Stream> streamsFromPool(const std::vector<c10::Device>& devices);

// This thread's current stream of each device.
std::vector<c10::Stream> currentStreams(const std::vector<c10::Device>& devices);

// A completed future of `message` on these devices. A thread that waits for it, and a callback that
// gets it, have streams that wait for this thread's.
FuturePtr completedFuture(const MessagePtr& message, const std::vector<c10::Device>& devices);

// Once per process: says that accelerator tensors go through host memory.
void noteHostStaging();

}  // namespace weft::rpc
