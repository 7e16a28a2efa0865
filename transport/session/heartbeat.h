// Heartbeat: when to send a heartbeat to a connected peer, and when its silence is too long. Time
// is an argument, so that tests need no waiting.
//
// It looks at byte counters once per tick, so that sending and receiving pay nothing for it.
// Silence while this process itself was suspended does not count.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace weft::transport {

class Heartbeat {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Verdict : std::uint8_t {
    kFine,
    kSend,    // a heartbeat is due
    kQuiet,   // nothing came for long; another connection may do better
    kSilent,  // nothing came for `timeout`
  };

  Heartbeat(Time now, std::chrono::milliseconds interval,
            std::chrono::milliseconds timeout) noexcept
      : interval_(interval),
        timeout_(timeout),
        // Half of `timeout`, but not before two heartbeats could have come.
        quiet_after_(std::max(timeout / 2, std::min(2 * interval, timeout * 3 / 4))),
        sent_at_(now),
        heard_at_(now) {}

  // `lost`: by how much this tick came late.
  Verdict tick(Time now, std::chrono::nanoseconds lost, std::uint64_t bytes_sent,
               std::uint64_t bytes_received) noexcept {
    if (bytes_received != bytes_received_) {
      bytes_received_ = bytes_received;
      heard_at_ = now;
    } else {
      heard_at_ += lost;
    }
    if (bytes_sent != bytes_sent_) {
      bytes_sent_ = bytes_sent;
      sent_at_ = now;
    }
    if (now - heard_at_ >= timeout_) return Verdict::kSilent;
    if (now - heard_at_ >= quiet_after_) return Verdict::kQuiet;
    return now - sent_at_ >= interval_ ? Verdict::kSend : Verdict::kFine;
  }

  std::chrono::nanoseconds silence(Time now) const noexcept { return now - heard_at_; }
  // When the silence becomes too long.
  Time limit() const noexcept { return heard_at_ + timeout_; }

 private:
  std::chrono::milliseconds interval_;
  std::chrono::milliseconds timeout_;
  std::chrono::milliseconds quiet_after_;
  Time sent_at_;
  Time heard_at_;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t bytes_received_ = 0;
};

}  // namespace weft::transport
