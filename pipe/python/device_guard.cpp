#include "pipe/python/device_guard.h"

#include <c10/core/impl/FakeGuardImpl.h>

namespace weft::pipe {

void ensureCudaDeviceGuard() {
  auto& registered =
      c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::DeviceType::CUDA)];
  const c10::impl::DeviceGuardImplInterface* const now = registered.load();
  if (now == nullptr || now->deviceCount() != 0) return;
  static const auto* const guard = new c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>();
  registered.store(guard);
}

}  // namespace weft::pipe
