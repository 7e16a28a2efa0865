// The states of a peer, and which may follow which.
#pragma once

#include <cstdint>

namespace weft::transport {

enum class PeerState : std::uint8_t {
  kIdle,          // known, not connected, nothing to send
  kDialling,      // a Connector is at work
  kConnected,     // a Link is up
  kReconnecting,  // the Link broke, and the session may yet go on: a Connector is at work, or the
                  // peer's
  kClosing,       // this side said goodbye; waiting until all is written and the peer ends too
  kGone,          // lost or closed; final
};

constexpr bool mayFollow(PeerState from, PeerState to) noexcept {
  switch (from) {
    case PeerState::kIdle:
      return to == PeerState::kDialling || to == PeerState::kConnected || to == PeerState::kGone;
    case PeerState::kDialling:
      return to == PeerState::kConnected || to == PeerState::kGone;
    case PeerState::kConnected:
      return to == PeerState::kReconnecting || to == PeerState::kClosing || to == PeerState::kGone;
    case PeerState::kReconnecting:
      return to == PeerState::kConnected || to == PeerState::kGone;
    case PeerState::kClosing:
      return to == PeerState::kGone;
    case PeerState::kGone:
      return false;
  }
  return false;
}

const char* toString(PeerState state) noexcept;

}  // namespace weft::transport
