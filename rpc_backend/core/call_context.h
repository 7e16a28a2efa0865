// CallContext: what is known of the call that a thread runs: until when its caller waits, and
// whether it has given up. Calls that the thread makes meanwhile inherit the deadline
// (RequestClient).
//
// The thread that serves a request has the request's context; one that completes a call has the
// deadline of the request in which the call was made, so that callbacks inherit it, too.
//
// Threads: any. Without torch. A context outlives its scopes. What goes on once a call has left its
// thread keeps the call's context by shared_from_this(): those of calls from peers are shared.
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
  // Of work for several calls at once: it may take as long as the latest of them, and is cancelled
  // when all of them are. Null is a call without an end.
  explicit CallContext(std::vector<std::shared_ptr<const CallContext>> calls);
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  Clock::time_point deadline() const noexcept { return deadline_; }
  bool hasDeadline() const noexcept { return deadline_ != kNever; }
  // The caller gives the call up.
  void cancel() noexcept { given_up_.store(true, std::memory_order_relaxed); }
  // Nobody waits for the answer any more: it was given up, or its deadline has passed.
  bool isCancelled() const noexcept {
    return given_up_.load(std::memory_order_relaxed) ||
           (hasDeadline() && deadline_ <= Clock::now()) || (!calls_.empty() && allCancelled());
  }

  // This thread's; null outside of calls.
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

// What a function that runs for a peer may ask about the call that this thread runs.
//
// How long its caller still waits, in seconds, 0 when the time is up; nothing outside of calls and
// in one without a timeout.
WEFT_API std::optional<double> secondsLeft() noexcept;
// Whether nobody waits for its answer any more. False outside of calls.
WEFT_API bool isCancelled() noexcept;

// How long a call may take.
struct CallTime {
  std::chrono::milliseconds timeout{0};  // 0: without end
  bool inherited = false;                // from the call that the thread runs
  bool over = false;                     // that one's time has passed: it need not be made
};

// For a call with a timeout of its own (0: none) that this thread makes at `now`: the earlier of
// that and the deadline of the call that it runs.
WEFT_API CallTime timeOfCall(std::chrono::milliseconds own,
                             CallContext::Clock::time_point now) noexcept;

}  // namespace weft::rpc
