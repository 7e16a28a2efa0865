// A wait of a caller that drives the endpoint: the thread reads itself what it waits for.
//
// Threads: any, without the GIL and with no lock held.
#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <memory>
#include <optional>

#include "rpc_backend/core/torch_names.h"
#include "transport/base/deadline.h"
#include "transport/base/interruption.h"
#include "transport/base/spin.h"
#include "transport/endpoint.h"

namespace weft::rpc {

// Whether torch's state of this thread is that of a new one, but for a profiler. On another thread
// neither an answer may be read nor the loop be run.
bool threadIsPlain();

// Hides from this thread's profiler what is done within: it is not what the thread called.
class Unprofiled {
 public:
  Unprofiled() {
    if (at::hasThreadLocalCallbacks()) guard_.emplace();
  }

 private:
  std::optional<at::DisableRecordFunctionGuard> guard_;
};

// kDone when `done()`, or when this thread cannot drive (any more): another caller does, or the
// endpoint closes. kInterrupted: a person's Ctrl-C came first. What makes `done()` true on another
// thread is followed by wakeDriver().
transport::Waited driveUntil(transport::Endpoint& endpoint, transport::Deadline deadline,
                             const std::function<bool()>& done, transport::AdaptiveSpin& spin);
// The same without an end of its own. False: interrupted.
inline bool driveInterruptibly(transport::Endpoint& endpoint, const std::function<bool()>& done,
                               transport::AdaptiveSpin& spin) {
  return driveUntil(endpoint, transport::Deadline::max(), done, spin) !=
         transport::Waited::kInterrupted;
}
// The same until the future is complete. Returns early where this thread can't drive (its state is
// not plain, another caller drives, or the endpoint closes): then wait in another way. Throws what
// Ctrl-C's handler raised.
void driveUntilCompleted(const std::shared_ptr<transport::Endpoint>& endpoint, JitFuture& future);

}  // namespace weft::rpc
