// The states of a peer, which may follow which, and the present one (PeerLife).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/base/check.h"

namespace weft::transport {

enum class PeerState : std::uint8_t {
  kIdle,          // known, not connected, nothing to send
  kConnecting,    // the first connection is being made
  kConnected,     // a link is up
  kReconnecting,  // the link broke; either side makes another one before the session's deadline
  kLeaving,       // as kConnecting or kReconnecting; this side says goodbye once it is connected
  kClosing,       // this side said goodbye; neither side has finished
  kFlushed,       // all is written; this side waits for the peer's goodbye
  kPeerDone,      // the peer said goodbye; the rest is being written
  kLost,          // it failed; the handler will be told
  kClosed,        // this side ended it; the handler will be told of unsent messages only
  kFinished,      // the handler has been told; final
};

inline constexpr std::size_t kPeerStates = 11;

// For each state the states that may follow it.
inline constexpr std::array<std::uint16_t, kPeerStates> kPeerTransitions = [] {
  using enum PeerState;
  const auto setOf = [](auto... states) {
    return static_cast<std::uint16_t>((0U | ... | (1U << static_cast<unsigned>(states))));
  };
  return std::array<std::uint16_t, kPeerStates>{
      /* kIdle         */ setOf(kConnecting, kConnected, kLost, kClosed),
      /* kConnecting   */ setOf(kConnected, kLeaving, kLost, kClosed),
      /* kConnected    */ setOf(kReconnecting, kClosing, kLost, kClosed),
      /* kReconnecting */ setOf(kConnected, kLeaving, kLost, kClosed),
      /* kLeaving      */ setOf(kClosing, kClosed),
      /* kClosing      */ setOf(kFlushed, kPeerDone, kClosed),
      /* kFlushed      */ setOf(kClosed),
      /* kPeerDone     */ setOf(kClosed),
      /* kLost         */ setOf(kFinished),
      /* kClosed       */ setOf(kFinished),
      /* kFinished     */ 0,
  };
}();

constexpr bool mayFollow(PeerState from, PeerState to) noexcept {
  return (kPeerTransitions[static_cast<std::size_t>(from)] >> static_cast<unsigned>(to) & 1) != 0;
}

// Threads: moveTo(): one, the loop thread; the rest: any.
class PeerLife {
 public:
  PeerState now() const noexcept { return state_.load(std::memory_order_acquire); }
  void moveTo(PeerState to) noexcept {
    WEFT_CHECK(mayFollow(now(), to), "a peer's state follows its table");
    state_.store(to, std::memory_order_release);
  }

  // Whether the peer is lost or closed, perhaps without the handler having been told.
  bool over() const noexcept { return now() >= PeerState::kLost; }
  // Whether the handler has been told, or is being told now.
  bool finished() const noexcept { return now() == PeerState::kFinished; }
  bool saidGoodbye() const noexcept {
    const PeerState state = now();
    return state == PeerState::kClosing || state == PeerState::kFlushed ||
           state == PeerState::kPeerDone;
  }
  // Whether it waits for a connection.
  bool mayAdopt() const noexcept {
    const PeerState state = now();
    return mayFollow(state, PeerState::kConnected) || state == PeerState::kLeaving;
  }

 private:
  std::atomic<PeerState> state_{PeerState::kIdle};
};

}  // namespace weft::transport
