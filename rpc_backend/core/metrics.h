// The counters of an agent, for getMetrics(). Any thread; relaxed atomics on the hot path.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc_backend/core/call_kind.h"
#include "transport/base/api.h"

namespace weft::rpc {

// A count that a thread may wait for to become zero.
class ActiveCount {
 public:
  void increment() { count_.fetch_add(1, std::memory_order_relaxed); }
  void decrement();
  std::int64_t value() const { return count_.load(std::memory_order_acquire); }
  // False when `wait` ran out first. Throws what Ctrl-C's handler raised.
  bool waitForZero(std::chrono::milliseconds wait);

 private:
  std::atomic<std::int64_t> count_{0};
  std::mutex mutex_;
  std::condition_variable zero_;
};

// A histogram of durations with four buckets per power of two: a quantile is exact within 19%.
class WEFT_API DurationHistogram {
 public:
  void add(std::chrono::nanoseconds duration);
  std::uint64_t count() const;
  double quantileMicroseconds(double quantile) const;  // 0 when empty
  std::chrono::nanoseconds total() const {
    return std::chrono::nanoseconds(total_ns_.load(std::memory_order_relaxed));
  }
  // How many are below 2^10 ns, 2^12 ns, … 2^38 ns, and how many there are.
  std::vector<std::uint64_t> cumulative() const;
  static std::vector<double> boundsInSeconds();  // for all but the last

  void addAll(const DurationHistogram& other);

 private:
  static constexpr std::size_t kBuckets = 4 * 40;  // up to 2^40 ns, 18 minutes
  std::uint64_t at(std::size_t bucket) const {
    return buckets_[bucket].load(std::memory_order_relaxed);
  }
  std::array<std::atomic<std::uint64_t>, kBuckets> buckets_{};
  std::atomic<std::int64_t> total_ns_{0};
};

struct AgentMetrics {
  ActiveCount client_calls;  // sent, future not complete or its callbacks still run
  std::atomic<std::int64_t> server_calls{0};
  std::atomic<std::int64_t> server_async_calls{0};
  std::atomic<std::uint64_t> calls_sent{0};
  std::atomic<std::uint64_t> calls_served{0};
  std::atomic<std::uint64_t> calls_timed_out{0};
  std::atomic<std::uint64_t> calls_failed{0};
  std::atomic<std::uint64_t> requests_refused{0};  // by policy or limits
  std::atomic<std::uint64_t> requests_refused_by_policy{0};
  std::atomic<std::uint64_t> requests_dropped{0};  // given up before they began
  std::atomic<std::uint64_t> gil_wait_us{0};
  std::atomic<std::uint64_t> gil_waits{0};
  std::array<DurationHistogram, kCallKinds.size()> round_trips;  // by CallKind

  void addRoundTrip(CallKind kind, std::chrono::nanoseconds duration) {
    round_trips[static_cast<std::size_t>(kind)].add(duration);
  }

  // Adds the metrics of calls as text, under TensorPipe's key names if it has one.
  void addTo(std::unordered_map<std::string, std::string>& out) const;
};

}  // namespace weft::rpc
