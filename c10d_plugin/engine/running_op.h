// RunningOp: which of a group's operations runs now, on which thread, and for how long operations
// have run in total.
//
// Threads: any. One operation at a time has a Scope.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft::process_group {

// What a group's collectives on the CPU do and did; for weft.metrics() and weft.who_waits().
struct Activity {
  std::uint64_t calls = 0;
  std::chrono::nanoseconds busy{};
  const char* running = nullptr;  // the title of the one that runs; null: none
  std::chrono::nanoseconds since{};
  std::chrono::milliseconds timeout{};
  std::vector<int> awaited;    // the ranks that it waits for, where that is known
  std::vector<double> waited;  // seconds, by the rank that was the last to come
};

class RunningOp {
 public:
  // An operation runs for a scope.
  class Scope {
   public:
    Scope(RunningOp& op, const char* title, std::chrono::milliseconds timeout)
        : op_(op), title_(title), outer_(std::exchange(innermost_, this)) {
      op_.since_ns_.store(start_.time_since_epoch().count(), std::memory_order_relaxed);
      op_.timeout_ms_.store(timeout.count(), std::memory_order_relaxed);
      op_.title_.store(title, std::memory_order_release);
    }
    ~Scope() {
      innermost_ = outer_;
      op_.title_.store(nullptr, std::memory_order_relaxed);
      const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - start_;
      op_.busy_ns_.fetch_add(took.count(), std::memory_order_relaxed);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class RunningOp;
    RunningOp& op_;
    const char* const title_;
    const Scope* const outer_;  // of another group, in whose wait a signal's handler runs this one
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };

  // Sets what the Activity says of the operation that runs now, which may be over when this
  // returns. False: none runs.
  bool fillIn(Activity& activity) const {
    activity.running = title_.load(std::memory_order_acquire);
    if (activity.running == nullptr) return false;
    activity.since = std::chrono::steady_clock::now().time_since_epoch() -
                     std::chrono::nanoseconds(since_ns_.load(std::memory_order_relaxed));
    activity.timeout = std::chrono::milliseconds(timeout_ms_.load(std::memory_order_relaxed));
    return true;
  }
  // The title of the one that the calling thread is inside of; null: none.
  const char* onThisThread() const {
    const Scope* scope = innermost_;
    while (scope != nullptr && &scope->op_ != this)
      scope = scope->outer_;
    return scope == nullptr ? nullptr : scope->title_;
  }
  std::chrono::nanoseconds busy() const {
    return std::chrono::nanoseconds(busy_ns_.load(std::memory_order_relaxed));
  }

 private:
  static inline thread_local constinit const Scope* innermost_ = nullptr;

  std::atomic<const char*> title_{nullptr};
  std::atomic<std::int64_t> since_ns_{0}, timeout_ms_{0};
  std::atomic<std::int64_t> busy_ns_{0};
};

}  // namespace weft::process_group
