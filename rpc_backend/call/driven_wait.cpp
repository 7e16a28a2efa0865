#include "rpc_backend/call/driven_wait.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <chrono>

#include "rpc_backend/core/call_context.h"
#include "transport/base/deadline.h"
#include "transport/base/interruption.h"

namespace weft::rpc {

bool threadIsPlain() {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_ == c10::default_included_set && keys.excluded_ == c10::default_excluded_set;
}

bool driveInterruptibly(transport::Endpoint& endpoint, const std::function<bool()>& done,
                        transport::AdaptiveSpin& spin) {
  // What the loop does is no part of the call that this thread runs.
  const CallScope scope(nullptr);
  const Unprofiled unprofiled;
  while (true) {
    const auto slice = transport::mayBeInterrupted()
                           ? std::chrono::steady_clock::now() + transport::kInterruptEvery
                           : transport::Deadline::max();
    const auto how = endpoint.drive(transport::Driver::kCaller, done, slice, spin);
    if (how != transport::Driven::kLate) return true;
    if (transport::interrupted()) return false;
  }
}

}  // namespace weft::rpc
