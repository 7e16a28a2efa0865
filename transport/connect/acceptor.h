// Acceptor: listens, and takes those who connect through the handshake, at most
// Limits::max_unauthenticated at once.
//
// Threads: counts(): any; the rest: the endpoint's loop thread.
// Failure: who fails the handshake is cut off and counted.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "transport/auth/handshake.h"
#include "transport/auth/handshake_runner.h"
#include "transport/auth/replay_guard.h"
#include "transport/connect/endpoint_context.h"
#include "transport/endpoint.h"
#include "transport/io/listener.h"
#include "transport/io/socket.h"

namespace weft::transport {

// A dialler that was admitted.
struct AuthenticatedPeer {
  Hello hello;
  SessionClaim claim;
  std::shared_ptr<Stream> stream;
};

class Acceptor final : private AcceptPolicy {
 public:
  struct Events {
    // The dialler has proved that it holds the key: is it welcome?
    std::function<RefusalCode(const Hello&, const SessionClaim& theirs, SessionClaim& ours)> admit;
    // It was, and both sides are proved. Follows admit() directly.
    std::function<void(AuthenticatedPeer)> admitted;
  };

  Acceptor(const EndpointContext& context, Events events);

  void listen(UniqueFd fd, const char* transport_name);
  // Stops listening and drops handshakes under way.
  void stop();

  // Any thread: fills in the refused_* of `stats`.
  void counts(EndpointStats& stats) const;

 private:
  bool nonceIsFresh(const Nonce& nonce) override { return replays_.fresh(nonce); }
  RefusalCode admit(const Hello& dialler, const SessionClaim& theirs, SessionClaim& ours) override {
    return events_.admit(dialler, theirs, ours);
  }

  void onAccepted(UniqueFd fd, const char* transport_name);
  void onHandshake(std::uint64_t id, HandshakeOutcome outcome);

  const EndpointContext& context_;
  const Events events_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_map<std::uint64_t, std::shared_ptr<HandshakeRunner>> running_;
  std::uint64_t next_id_ = 0;
  ReplayGuard replays_;
  using Count = std::atomic<std::uint64_t>;
  std::array<Count, kRefusalCodes> refused_{};  // by RefusalCode
  Count timeouts_{0};
  Count overloads_{0};
};

}  // namespace weft::transport
