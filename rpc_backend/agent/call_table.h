// The one table of calls that wait for an answer. Whoever takes a call out of it
// completes its future: answer, timeout, lost peer and shutdown can race, and exactly one
// of them gets it. Any thread; no call out is made with the lock held.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "rpc_backend/agent/inline_waiter.h"

namespace weft::rpc {

using Clock = std::chrono::steady_clock;

struct PendingCall {
  c10::intrusive_ptr<torch::distributed::rpc::JitFuture> future;
  torch::distributed::rpc::worker_id_t peer = -1;
  std::uint16_t type = 0;
  std::chrono::milliseconds timeout{0};  // 0: never
  Clock::time_point started{};
  std::uint64_t id = 0;         // set by add()
  InlineWaiter::Handle waiter;  // whoever waits for it, if that is known
  Clock::time_point deadline() const {
    return timeout.count() == 0 ? Clock::time_point::max() : started + timeout;
  }
};

class PendingCalls {
 public:
  // Calls are numbered from here on. Before the first.
  void startAt(std::uint64_t id) { next_id_ = id; }
  std::uint64_t add(PendingCall call);  // returns the call's id, unique for this agent
  std::optional<PendingCall> take(std::uint64_t id);
  // Only when it waits for `peer`: an answer from anybody else is not an answer.
  std::optional<PendingCall> take(std::uint64_t id, torch::distributed::rpc::worker_id_t peer);
  bool waits(std::uint64_t id, torch::distributed::rpc::worker_id_t peer) const;
  std::vector<PendingCall> takeAllOf(torch::distributed::rpc::worker_id_t peer);
  std::vector<PendingCall> takeAll();
  // Takes what has expired at `now`; `next` becomes the earliest deadline that remains.
  std::vector<PendingCall> takeExpired(Clock::time_point now, Clock::time_point& next);
  std::size_t size() const;

 private:
  template <typename Predicate>
  std::optional<PendingCall> takeOne(std::uint64_t id, Predicate predicate);
  template <typename Predicate>
  std::vector<PendingCall> takeIf(Predicate predicate);

  mutable std::mutex mutex_;
  std::uint64_t next_id_ = 1;
  std::unordered_map<std::uint64_t, PendingCall> calls_;
};

}  // namespace weft::rpc
