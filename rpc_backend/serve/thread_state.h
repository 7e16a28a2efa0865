// FreshThreadState: each request begins with torch's state of a new thread, whatever the functions
// of earlier requests left behind: gradients switched off, autocast, inference mode, a default
// device, modes, CUDA's current device and streams. The profiler's state stays: a request may start
// a profiler for later ones.
//
// Threads: workers.
#pragma once

#include <c10/core/Stream.h>

#include <optional>
#include <vector>

namespace weft::rpc {

// Sets this thread's state back at the end of a scope, if it is not that of a new thread. The first
// one on a thread remembers the state, so it is made before user code runs there.
class FreshThreadState {
 public:
  FreshThreadState();
  ~FreshThreadState();
  FreshThreadState(const FreshThreadState&) = delete;
  FreshThreadState& operator=(const FreshThreadState&) = delete;

 private:
  // Of CUDA at the beginning; nothing where torch had not initialised it.
  std::optional<c10::Device> device_;
  std::vector<c10::Stream> streams_;  // of each device
};

}  // namespace weft::rpc
