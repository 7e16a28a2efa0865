// Interruption: a person's Ctrl-C where the main thread waits in C++.
//
// Python runs a signal's handler on the main thread only, and only when that thread asks. So each
// wait that may be long asks every 50 ms; when the handler raised something (KeyboardInterrupt),
// the wait ends and its caller throws that. This layer knows nothing of Python: a hook asks.
//
// Threads: any; off the main thread, and in a process without Python, nothing is ever interrupted.
// The hook takes the GIL and runs user code: ask with no lock held.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "transport/base/api.h"
#include "transport/base/deadline.h"

namespace weft::transport {

struct InterruptHook {
  // Runs the handlers of signals that have come. True: one raised something, now or before, which
  // is kept until it is thrown.
  bool (*check)() = nullptr;
  // Throws what is kept, if anything.
  void (*raise)() = nullptr;
};
// Once, before the first wait.
WEFT_API void setInterruptHook(InterruptHook hook) noexcept;
// For a shared object that has a copy of this code of its own.
WEFT_API InterruptHook interruptHook() noexcept;

inline constexpr std::chrono::milliseconds kInterruptEvery{50};

// Whether this thread can be interrupted at all.
WEFT_API bool mayBeInterrupted() noexcept;
// Whether a handler raised something that was not thrown yet. Cheap: it runs the hook only some
// time after it last did, and says no in between.
WEFT_API bool interrupted();
// Throws what the handler raised; returns when there is nothing.
WEFT_API void raiseInterrupt();
inline void raiseIfInterrupted() {
  if (interrupted()) raiseInterrupt();
}

enum class Waited : std::uint8_t { kDone, kLate, kInterrupted };

// Waits until `ready()`. The lock is free while the hook runs. An interruption takes precedence
// over a late arrival: what the handler raised must be thrown now.
template <typename Ready>
Waited waitInterruptibly(std::condition_variable& arrived, std::unique_lock<std::mutex>& lock,
                         Deadline deadline, Ready&& ready) {
  // The first slice asks nothing: most waits end in it.
  while (true) {
    const Deadline slice = std::chrono::steady_clock::now() + kInterruptEvery;
    if (arrived.wait_until(lock, std::min(slice, deadline), ready)) return Waited::kDone;
    if (slice >= deadline) return Waited::kLate;
    if (!mayBeInterrupted()) break;
    lock.unlock();
    const bool stop = interrupted();
    lock.lock();
    if (stop) return Waited::kInterrupted;
  }
  return arrived.wait_until(lock, deadline, ready) ? Waited::kDone : Waited::kLate;
}

// The same without an end of its own. False: interrupted.
template <typename Ready>
bool waitInterruptibly(std::condition_variable& arrived, std::unique_lock<std::mutex>& lock,
                       Ready&& ready) {
  const Deadline never = deadlineAfter(std::chrono::milliseconds::max());
  return waitInterruptibly(arrived, lock, never, ready) != Waited::kInterrupted;
}

}  // namespace weft::transport
