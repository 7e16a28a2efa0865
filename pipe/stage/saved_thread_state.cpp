#include "pipe/stage/saved_thread_state.h"

#include <algorithm>

namespace weft::pipe {

SavedThreadState SavedThreadState::here(const std::vector<c10::Device>& devices) {
  std::vector<c10::DeviceType> types{c10::kCPU};
  for (const c10::Device device : devices) {
    if (!device.is_meta() && std::find(types.begin(), types.end(), device.type()) == types.end()) {
      types.push_back(device.type());
    }
  }
  SavedThreadState thread_state;
  for (const c10::DeviceType type : types) {
    thread_state.autocast_.push_back(
        {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
  }
  thread_state.hooks_ = at::SavedTensorDefaultHooks::get_tls_state();
  thread_state.modes_ = at::impl::PythonTorchFunctionTLS::get_state();
  return thread_state;
}

void SavedThreadState::set() const {
  for (const Autocast& autocast : autocast_) {
    at::autocast::set_autocast_enabled(autocast.type, autocast.enabled);
    at::autocast::set_autocast_dtype(autocast.type, autocast.dtype);
  }
  at::SavedTensorDefaultHooks::set_tls_state(hooks_);
  at::impl::PythonTorchFunctionTLS::set_state(modes_);
}

ThreadStateGuard::ThreadStateGuard(const SavedThreadState& thread_state) {
  std::vector<c10::Device> devices;
  for (const auto& autocast : thread_state.autocast_)
    devices.emplace_back(autocast.type);
  before_ = SavedThreadState::here(devices);
  thread_state.set();
}

}  // namespace weft::pipe
