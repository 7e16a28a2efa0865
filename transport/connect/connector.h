// Connector: makes one authenticated connection to a peer. It tries the peer's addresses in turn,
// retries after temporary failures, and gives up after others.
//
// Threads: the endpoint's loop thread. Destroying it ends the attempt.
// Failure: the Outcome has an Error; nothing is left open.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/auth/handshake_runner.h"
#include "transport/connect/endpoint_context.h"
#include "transport/endpoint.h"
#include "transport/io/address.h"
#include "transport/io/event_loop.h"
#include "transport/io/poll.h"
#include "transport/io/timer.h"

namespace weft::transport {

// For the log of a worker whose rank and name another process has.
inline constexpr const char* kWhoCanTakeARank =
    "Any process with the group's key can do that: look for one that was started under this rank";

class Connector {
 public:
  struct Outcome {
    Error error;                     // why it failed for good; does not name the peer
    std::shared_ptr<Stream> stream;  // if it did not fail
    Hello peer;
    SessionClaim claim;  // the peer's
    // It failed because another process has this worker's rank and name there.
    bool displaced = false;
  };
  using Done = std::function<void(Outcome)>;

  struct RetryBackoff {
    std::chrono::milliseconds all;        // for all attempts together; 0: no limit
    std::chrono::milliseconds handshake;  // for each
  };

  // `claim`: what this side says of the session.
  Connector(const EndpointContext& context, PeerInfo peer, const Address& address,
            const SessionClaim& claim, RetryBackoff backoff);

  // `done` is called once, perhaps from start(). It may destroy this object.
  void start(Done done);

  // Whether the peer may have heard of this attempt.
  bool handshaking() const noexcept { return handshake_ != nullptr; }
  // Whether the two share a transport.
  bool hasWay() const noexcept { return !candidates_.empty(); }
  // What went wrong last, for people.
  const std::string& lastProblem() const noexcept { return last_problem_; }

 private:
  struct Candidate {
    bool is_unix;
    std::string text;  // for people
  };

  void round();
  void attempt();
  void onConnected();
  void onConnectFailed(int error);
  void nextCandidate(const std::string& problem);
  void onHandshake(HandshakeOutcome outcome);
  void onRefused(RefusalCode code, std::uint16_t peer_version);
  // Whether the two have proved themselves to each other before; then damaged bytes may be the
  // cause of a refusal.
  bool metBefore() const noexcept { return claim_.peer != 0; }
  void backOff();
  void onDeadline();
  void fail(ErrorCode code, std::string why);
  void finish(Outcome outcome);

  const EndpointContext& context_;
  const PeerInfo peer_;
  const Address address_;
  const SessionClaim claim_;
  const RetryBackoff backoff_;
  std::vector<Candidate> candidates_;
  std::size_t next_ = 0;     // candidate of the attempt
  std::size_t refused_ = 0;  // candidates of this round where nobody listens
  std::string last_problem_ = "nothing was tried yet";
  bool duplicate_ = false;  // the last handshake ended with kDuplicate
  std::chrono::milliseconds pause_{0};

  UniqueFd connecting_;
  std::unique_ptr<Poll> poll_;
  std::unique_ptr<HandshakeRunner> handshake_;
  Timer deadline_;
  Timer pause_timer_;
  Done done_;
};

}  // namespace weft::transport
