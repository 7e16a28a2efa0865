// The thread-local settings that a stage's operations depend on: autocast, saved-tensor hooks,
// torch function modes (a default device is one) and Python objects (context variables are one).
// The forward saves them for its recomputations.
// (at::ThreadLocalState brings everything thread-local to the forward's workers; the backward has a
// state of its own for the rest.)
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/autocast_mode.h>

#include <vector>

namespace weft::pipe {

class SavedThreadState {
 public:
  // The calling thread's.
  static SavedThreadState here() {
    SavedThreadState state;
    for (const c10::DeviceType type : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
      state.autocast_.push_back(
          {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
    }
    state.hooks_ = at::SavedTensorDefaultHooks::get_tls_state();
    state.modes_ = at::impl::PythonTorchFunctionTLS::get_state();
    state.objects_ = at::impl::ThreadLocalPythonObjects::get_state();
    return state;
  }
  // Sets it on the calling thread.
  void set() const {
    for (const Autocast& autocast : autocast_) {
      at::autocast::set_autocast_enabled(autocast.type, autocast.enabled);
      at::autocast::set_autocast_dtype(autocast.type, autocast.dtype);
    }
    at::SavedTensorDefaultHooks::set_tls_state(hooks_);
    at::impl::PythonTorchFunctionTLS::set_state(modes_);
    at::impl::ThreadLocalPythonObjects::set_state(objects_);
  }
  // Hooks on tensors that autograd saves.
  bool hasHooks() const { return !hooks_.stack.empty(); }

 private:
  struct Autocast {
    c10::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<Autocast> autocast_;
  at::impl::SavedTensorDefaultHooksTLS hooks_;
  at::impl::PythonTorchFunctionTLS modes_;
  at::impl::ThreadLocalPythonObjects objects_;
};

// Sets a saved state on the calling thread, and the state before it again at its end.
class ThreadStateGuard {
 public:
  explicit ThreadStateGuard(const SavedThreadState& thread_state) { thread_state.set(); }
  ~ThreadStateGuard() { before_.set(); }
  ThreadStateGuard(const ThreadStateGuard&) = delete;
  ThreadStateGuard& operator=(const ThreadStateGuard&) = delete;

 private:
  const SavedThreadState before_ = SavedThreadState::here();
};

// Autocast remembers a parameter's cast copy, with the history it had. A copy made without a graph
// would serve a stage run that needs one, and one made in a recomputation would outlive the step.
class NoAutocastCache {
 public:
  NoAutocastCache() : before_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(before_); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool before_;
};

}  // namespace weft::pipe
