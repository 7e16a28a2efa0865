// ScopedInlineWaiter: an InlineWaiter for a scope. A thread takes it, sends its call, and waits
// with InlineWaiter::wait(); when the call cannot be sent, the waiter is left all the same.
#pragma once

#include "rpc_backend/agent/inline_waiter.h"

namespace weft::rpc {

class ScopedInlineWaiter {
 public:
  ScopedInlineWaiter() { InlineWaiter::take(); }
  ~ScopedInlineWaiter() { InlineWaiter::leave(); }
  ScopedInlineWaiter(const ScopedInlineWaiter&) = delete;
  ScopedInlineWaiter& operator=(const ScopedInlineWaiter&) = delete;
};

}  // namespace weft::rpc
