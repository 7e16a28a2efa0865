// CallContext: what is known of the call that a thread runs: until when its caller waits, and
// whether the caller has given up. Calls that the thread makes meanwhile inherit the deadline
// (RequestClient).
//
// A thread that serves a request has the request's context. A thread that completes a call has the
// deadline of the request in which the call was made, so that callbacks in C++ inherit it, too. A
// callback in Python has that of the call in which it was registered (CallbackContext).
//
// Threads: any. Knows nothing of torch. Ownership: a context outlives its scopes; work that
// continues after its call has left the thread keeps the context by shared_from_this(), because
// contexts of calls from peers are shared.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "transport/base/api.h"

namespace weft::rpc {

class WEFT_API CallContext : public std::enable_shared_from_this<CallContext> {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  explicit CallContext(Clock::time_point deadline = kNever) noexcept : deadline_(deadline) {}
  // The context of work for several calls at once. It may take until the latest deadline, and is
  // cancelled when all calls are. A null call has no deadline.
  explicit CallContext(std::vector<std::shared_ptr<const CallContext>> calls);
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  Clock::time_point deadline() const noexcept { return deadline_; }
  bool hasDeadline() const noexcept { return deadline_ != kNever; }
  // The caller has given up the call.
  void cancel() noexcept { given_up_.store(true, std::memory_order_relaxed); }
  // Whether nobody waits for the answer any more, because it was given up or its deadline has
  // passed.
  bool isCancelled() const noexcept {
    return given_up_.load(std::memory_order_relaxed) ||
           (hasDeadline() && deadline_ <= Clock::now()) || (!calls_.empty() && allCancelled());
  }

  // The context of this thread; null outside of calls.
  static const CallContext* current() noexcept;
  // When a call with this timeout ends if it begins now; 0: never.
  static Clock::time_point after(std::chrono::milliseconds timeout) noexcept {
    return timeout.count() == 0 ? kNever : Clock::now() + timeout;
  }

 private:
  bool allCancelled() const noexcept;

  const std::vector<std::shared_ptr<const CallContext>> calls_;
  const Clock::time_point deadline_;
  std::atomic<bool> given_up_{false};
};

// Makes a context this thread's for a scope. Null: none.
class WEFT_API CallScope {
 public:
  explicit CallScope(const CallContext* context) noexcept;
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  const CallContext* const outer_;
};

// The call in which a callback is registered, which may run later, on any thread. Does not keep the
// call alive: where it has ended, its deadline is left.
class WEFT_API CallbackContext {
 public:
  CallbackContext() noexcept;  // of the call that this thread runs

  CallContext::Clock::time_point deadline() const noexcept { return deadline_; }
  // Whether this thread runs that very call, so that it knows more of it than the deadline.
  bool isCurrent() const noexcept;

 private:
  std::weak_ptr<const CallContext> call_;
  CallContext::Clock::time_point deadline_ = CallContext::kNever;
};

// For a function that runs for a peer: how long the caller of the call that this thread runs still
// waits, in seconds, 0 when the time is up. Nothing: there is no call, or it has no timeout.
WEFT_API std::optional<double> secondsLeft() noexcept;
// Whether nobody waits for its answer any more. False outside of calls.
WEFT_API bool isCancelled() noexcept;

// How long a call may take.
struct CallTime {
  std::chrono::milliseconds timeout{0};  // 0: without end
  bool inherited = false;                // it is the rest of that of the call that the thread runs
  bool over = false;                     // no time is left: the call need not be made
};

// The time for a call that this thread makes at `now` with a timeout of its `own` (0: none): until
// the earlier of that and the deadline of the call that the thread runs.
WEFT_API CallTime timeOfCall(std::chrono::milliseconds own,
                             CallContext::Clock::time_point now) noexcept;

}  // namespace weft::rpc
