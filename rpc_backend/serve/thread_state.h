// FreshThreadState: each request begins with torch's state of a new thread, whatever the functions
// of earlier requests left behind: gradients switched off, autocast, inference mode, a default
// device, modes. The profiler's state stays: a request may start a profiler for later ones.
//
// Threads: workers.
#pragma once

namespace weft::rpc {

// Sets this thread's state back at the end of a scope, if it is not that of a new thread. The first
// one on a thread remembers the state, so it is made before user code runs there.
class FreshThreadState {
 public:
  FreshThreadState();
  ~FreshThreadState();
  FreshThreadState(const FreshThreadState&) = delete;
  FreshThreadState& operator=(const FreshThreadState&) = delete;
};

}  // namespace weft::rpc
