#include "transport/base/interruption.h"

#include <unistd.h>

namespace weft::transport {

namespace {

// A wait in slices looks at each slice's end; what looks more often has to wait so long.
constexpr std::chrono::milliseconds kRest{25};

InterruptHook g_hook;
thread_local Deadline t_next_look{};

}  // namespace

void setInterruptHook(InterruptHook hook) noexcept { g_hook = hook; }

InterruptHook interruptHook() noexcept { return g_hook; }

bool mayBeInterrupted() noexcept { return g_hook.check != nullptr && gettid() == getpid(); }

bool interrupted() {
  const Deadline now = std::chrono::steady_clock::now();
  if (now < t_next_look) return false;
  t_next_look = now + kRest;
  return mayBeInterrupted() && g_hook.check();
}

void raiseInterrupt() {
  if (mayBeInterrupted()) g_hook.raise();
}

}  // namespace weft::transport
