#include "rpc_backend/core/metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "transport/base/interruption.h"

namespace weft::rpc {

void ActiveCount::decrement() {
  if (count_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // The lock orders this with a waiter that has just read a non-zero count.
  const std::lock_guard lock(mutex_);
  zero_.notify_all();
}

bool ActiveCount::waitForZero(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  const auto ended = transport::waitInterruptibly(zero_, lock, transport::deadlineAfter(wait),
                                                  [&] { return value() == 0; });
  lock.unlock();
  if (ended == transport::Waited::kInterrupted) transport::raiseInterrupt();
  return ended == transport::Waited::kDone;
}

void DurationHistogram::add(std::chrono::nanoseconds duration) {
  const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count(), 4));
  const auto octave = static_cast<std::size_t>(std::bit_width(ns)) - 1;
  const std::size_t quarter = ns >> (octave - 2) & 3U;
  buckets_[std::min(octave * 4 + quarter, kBuckets - 1)].fetch_add(1, std::memory_order_relaxed);
  total_ns_.fetch_add(std::max<std::int64_t>(duration.count(), 0), std::memory_order_relaxed);
}

std::uint64_t DurationHistogram::count() const {
  std::uint64_t total = 0;
  for (const auto& bucket : buckets_)
    total += bucket.load(std::memory_order_relaxed);
  return total;
}

namespace {

constexpr std::size_t kFirstBound = 10, kLastBound = 38, kBoundStep = 2;  // powers of two, in ns

}  // namespace

std::vector<std::uint64_t> DurationHistogram::cumulative() const {
  std::vector<std::uint64_t> below;
  std::uint64_t seen = 0;
  std::size_t bucket = 0;
  for (std::size_t bound = kFirstBound; bound <= kLastBound; bound += kBoundStep) {
    for (; bucket < bound * 4; ++bucket)
      seen += at(bucket);
    below.push_back(seen);
  }
  for (; bucket < kBuckets; ++bucket)
    seen += at(bucket);
  below.push_back(seen);
  return below;
}

std::vector<double> DurationHistogram::boundsInSeconds() {
  std::vector<double> bounds;
  for (std::size_t bound = kFirstBound; bound <= kLastBound; bound += kBoundStep)
    bounds.push_back(std::ldexp(1e-9, static_cast<int>(bound)));
  return bounds;
}

void DurationHistogram::addAll(const DurationHistogram& other) {
  for (std::size_t i = 0; i < kBuckets; ++i)
    buckets_[i].fetch_add(other.at(i), std::memory_order_relaxed);
  total_ns_.fetch_add(other.total().count(), std::memory_order_relaxed);
}

double DurationHistogram::quantileMicroseconds(double quantile) const {
  const std::uint64_t total = count();
  if (total == 0) return 0;
  const auto rank = static_cast<std::uint64_t>(quantile * static_cast<double>(total - 1));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    seen += at(i);
    if (seen <= rank) continue;
    const double low = std::ldexp(1.0 + static_cast<double>(i % 4) / 4, static_cast<int>(i / 4));
    return low * 1.125 / 1000;
  }
  return 0;
}

void AgentMetrics::addTo(std::unordered_map<std::string, std::string>& out) const {
  const auto put = [&](const char* key, auto value) { out[key] = std::to_string(value); };
  put("agent.client_active_calls", client_calls.value());
  put("agent.server_active_calls", server_calls.load());
  put("agent.server_active_async_calls", server_async_calls.load());
  put("agent.calls_sent", calls_sent.load());
  put("agent.calls_served", calls_served.load());
  put("agent.calls_timed_out", calls_timed_out.load());
  put("agent.calls_failed", calls_failed.load());
  put("agent.requests_refused", requests_refused.load());
  put("agent.requests_refused_by_policy", requests_refused_by_policy.load());
  put("agent.requests_dropped", requests_dropped.load());
  DurationHistogram round_trips_of_all;
  for (const auto& one : round_trips)
    round_trips_of_all.addAll(one);
  put("agent.round_trip_us_p50", round_trips_of_all.quantileMicroseconds(0.5));
  put("agent.round_trip_us_p90", round_trips_of_all.quantileMicroseconds(0.9));
  put("agent.round_trip_us_p99", round_trips_of_all.quantileMicroseconds(0.99));
}

}  // namespace weft::rpc
