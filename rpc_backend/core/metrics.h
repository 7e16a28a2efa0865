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
class DurationHistogram {
 public:
  void add(std::chrono::nanoseconds duration);
  std::uint64_t count() const;
  double quantileMicroseconds(double quantile) const;  // 0 when empty

 private:
  static constexpr std::size_t kBuckets = 4 * 40;  // up to 2^40 ns, 18 minutes
  std::array<std::atomic<std::uint64_t>, kBuckets> buckets_{};
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
  std::atomic<std::uint64_t> requests_dropped{0};  // given up before they began
  std::atomic<std::uint64_t> gil_wait_us{0};
  std::atomic<std::uint64_t> gil_waits{0};
  DurationHistogram round_trip;

  // Those of calls as text, under TensorPipe's key names where it has one.
  void addTo(std::unordered_map<std::string, std::string>& out) const;
};

}  // namespace weft::rpc
