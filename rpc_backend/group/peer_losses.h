// PeerLosses: why, and for how long, each worker was lost last; also after it came back.
//
// Threads: any. Its lock is a leaf.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "rpc_backend/core/torch_names.h"
#include "transport/base/error.h"

namespace weft::rpc {

class PeerLosses {
 public:
  using Clock = std::chrono::steady_clock;

  // The worker is lost. The first reason of a loss stays.
  void add(worker_id_t peer, const transport::Error& why);
  // The lost worker lives, but refuses connections from this worker.
  void setRefusesUs(worker_id_t peer, const transport::Error& why);
  // The worker is here again, perhaps in another life.
  void setBack(worker_id_t peer);
  // It is back in the life that was lost. Returns how long it was lost.
  Clock::duration endOutage(worker_id_t peer);

  // Why the worker is lost; nothing: it is not.
  std::optional<std::string> lossOf(worker_id_t peer) const;
  // Whether it is lost because it refuses this worker.
  bool refusesUs(worker_id_t peer) const;
  // Why it was lost last, also after it came back.
  std::optional<std::string> lastReason(worker_id_t peer) const;
  // Everybody's last reason, also of those that came back.
  std::map<worker_id_t, std::string> all() const;
  // How long it was lost last; nothing: it is lost, or came back in another life.
  std::optional<Clock::duration> lastOutage(worker_id_t peer) const;

 private:
  enum class State : std::uint8_t { kLost, kRefusesUs, kBack };
  struct Loss {
    std::string reason;
    State state = State::kLost;
    Clock::time_point since = Clock::now();
    std::optional<Clock::duration> outage;  // kBack, in the life that was lost
  };
  const Loss* find(worker_id_t peer) const;

  mutable std::mutex mutex_;
  std::unordered_map<worker_id_t, Loss> losses_;
};

}  // namespace weft::rpc
