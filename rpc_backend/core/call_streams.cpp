#include "rpc_backend/core/call_streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace weft::rpc {

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

}  // namespace weft::rpc
