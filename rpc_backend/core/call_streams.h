// The streams of a call: a message's tensors are copied on the streams that are current when it is
// made or read, so the copies see work queued before.
//
// Any thread.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <vector>

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

// One stream of the pool per device; empty for no devices.
std::vector<c10::Stream> streamsFromPool(const std::vector<c10::Device>& devices);

// This thread's current stream of each device.
std::vector<c10::Stream> currentStreams(const std::vector<c10::Device>& devices);

// A completed future of `message` on these devices. A thread that waits for it, and a callback that
// gets it, have streams that wait for this thread's.
FuturePtr completedFuture(const MessagePtr& message, const std::vector<c10::Device>& devices);

}  // namespace weft::rpc
