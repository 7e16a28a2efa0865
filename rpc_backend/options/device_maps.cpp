#include "rpc_backend/options/device_maps.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <mutex>

#include "rpc_backend/core/log.h"

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

std::vector<c10::Stream> streamsFromPool(const std::vector<c10::Device>& devices) {
  std::vector<c10::Stream> streams;
  if (devices.empty()) return streams;
  streams.reserve(devices.size());
  c10::impl::VirtualGuardImpl guard(devices.front().type());
  for (const c10::Device& device : devices) {
    streams.push_back(guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false));
  }
  return streams;
}

std::vector<c10::Stream> currentStreams(const std::vector<c10::Device>& devices) {
  std::vector<c10::Stream> streams;
  if (devices.empty()) return streams;
  streams.reserve(devices.size());
  const c10::impl::VirtualGuardImpl guard(devices.front().type());
  for (const c10::Device& device : devices)
    streams.push_back(guard.getStream(device));
  return streams;
}

FuturePtr completedFuture(const MessagePtr& message, const std::vector<c10::Device>& devices) {
  auto future = c10::make_intrusive<JitFuture>(at::AnyClassType::get(), devices);
  // Only streams of devices ask for storages, and torch finds none in some sparse tensors.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  if (!devices.empty()) storages = message->getStorages();
  future->markCompleted(message, std::move(storages));
  return future;
}

void noteHostStaging() {
  static std::once_flag once;
  std::call_once(once, [] {
    logInfo("tensors on accelerators are sent through host memory; see docs/guide/cuda.md");
  });
}

}  // namespace weft::rpc
