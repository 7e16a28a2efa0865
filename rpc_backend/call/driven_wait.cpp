#include "rpc_backend/call/driven_wait.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "rpc_backend/core/call_context.h"
#include "rpc_backend/core/thread_state_of_torch.h"

namespace weft::rpc {

transport::Driven driveOnce(transport::Endpoint& endpoint, transport::Deadline deadline,
                            const std::function<bool()>& done, transport::AdaptiveSpin& spin) {
  // The loop's work is no part of the call that this thread runs.
  const CallScope scope(nullptr);
  const Unprofiled unprofiled;
  return endpoint.drive(transport::Driver::kCaller, done, deadline, spin);
}

std::optional<transport::Waited> driveUntil(transport::Endpoint& endpoint,
                                            transport::Deadline deadline,
                                            const std::function<bool()>& done,
                                            transport::AdaptiveSpin& spin) {
  while (true) {
    const auto slice = transport::mayBeInterrupted()
                           ? std::chrono::steady_clock::now() + transport::kInterruptEvery
                           : transport::Deadline::max();
    const auto end = std::min(slice, deadline);
    const auto how = driveOnce(endpoint, end, done, spin);
    if (how == transport::Driven::kDone) return transport::Waited::kDone;
    if (how != transport::Driven::kLate) return std::nullopt;
    if (transport::interrupted()) return transport::Waited::kInterrupted;
    if (end == deadline) return transport::Waited::kLate;
  }
}

void driveUntilCompleted(const std::shared_ptr<transport::Endpoint>& endpoint, JitFuture& future) {
  if (!threadIsPlain() || future.completed()) return;
  thread_local transport::AdaptiveSpin spin;
  const auto wake = [endpoint, waiter = std::this_thread::get_id()](JitFuture&) {
    if (std::this_thread::get_id() != waiter) endpoint->wakeDriver(transport::Driver::kCaller);
  };
  future.addCallback(wake, /*uses_future=*/false);
  const auto completed = [&] { return future.completed(); };
  const auto how = driveUntil(*endpoint, transport::Deadline::max(), completed, spin);
  if (how == transport::Waited::kInterrupted) transport::raiseInterrupt();
}

}  // namespace weft::rpc
