#include "pipe/stage/saved_thread_state.h"

#include <algorithm>

namespace weft::pipe {

Ambience Ambience::here(const std::vector<c10::Device>& devices) {
  std::vector<c10::DeviceType> types{c10::kCPU};
  for (const c10::Device device : devices) {
    if (!device.is_meta() && std::find(types.begin(), types.end(), device.type()) == types.end()) {
      types.push_back(device.type());
    }
  }
  Ambience ambience;
  for (const c10::DeviceType type : types) {
    ambience.autocast_.push_back(
        {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
  }
  ambience.hooks_ = at::SavedTensorDefaultHooks::get_tls_state();
  ambience.modes_ = at::impl::PythonTorchFunctionTLS::get_state();
  return ambience;
}

void Ambience::set() const {
  for (const Autocast& autocast : autocast_) {
    at::autocast::set_autocast_enabled(autocast.type, autocast.enabled);
    at::autocast::set_autocast_dtype(autocast.type, autocast.dtype);
  }
  at::SavedTensorDefaultHooks::set_tls_state(hooks_);
  at::impl::PythonTorchFunctionTLS::set_state(modes_);
}

AmbienceGuard::AmbienceGuard(const Ambience& ambience) {
  std::vector<c10::Device> devices;
  for (const auto& autocast : ambience.autocast_)
    devices.emplace_back(autocast.type);
  before_ = Ambience::here(devices);
  ambience.set();
}

}  // namespace weft::pipe
