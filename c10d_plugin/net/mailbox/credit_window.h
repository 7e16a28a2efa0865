// CreditWindow: flow control between this rank and one peer, both directions.
//
// The sender may send a message eagerly while its credit lasts; a receiver grants credit back when
// it has consumed what was sent. So a receiver keeps at most one window of bytes for each sender
// for which no receive is posted. Both sides have the same window.
//
// Threads: under the mailbox's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace weft::collectives {

class CreditWindow {
 public:
  // What a message costs of the window.
  static constexpr std::uint64_t costOf(std::uint64_t bytes) { return bytes + 64; }

  CreditWindow() = default;
  explicit CreditWindow(std::uint64_t window) : window_(window), credit_(window) {}

  std::uint64_t window() const noexcept { return window_; }

  // Sender: takes the credit for a message. False: there is too little.
  bool spend(std::uint64_t cost) noexcept {
    if (cost > credit_) return false;
    credit_ -= cost;
    return true;
  }
  // Sender: the peer granted so much.
  void refill(std::uint64_t credit) noexcept { credit_ += std::min(credit, window_ - credit_); }

  // Receiver: keeps a message for which no receive is posted. False: the peer exceeds the window.
  bool keep(std::uint64_t cost) noexcept {
    if (kept_ + cost > window_) return false;
    kept_ += cost;
    return true;
  }
  // Receiver: a message has found its receive. Returns the credit to grant now, which is 0 until a
  // quarter of the window is owed.
  std::uint64_t consume(std::uint64_t cost) noexcept {
    kept_ -= std::min(cost, kept_);
    owed_ += cost;
    return owed_ * 4 < window_ ? 0 : std::exchange(owed_, 0);
  }

 private:
  std::uint64_t window_ = 0;
  std::uint64_t credit_ = 0;  // of the peer's window: may be sent at once
  std::uint64_t kept_ = 0;    // bytes of this rank's window in unexpected messages
  std::uint64_t owed_ = 0;    // consumed and not yet granted
};

}  // namespace weft::collectives
