// Connector: makes one authenticated connection to a peer. It tries the peer's addresses in turn,
// retries what may pass, and gives up on what will not.
//
// Threads: the endpoint's loop thread. Ownership: whoever holds it ends it with retire().
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

namespace weft::transport {

class Connector {
 public:
  enum class Stage : std::uint8_t {
    kConnecting,   // the peer has not heard of this attempt
    kHandshaking,  // it may have
    kBackoff,      // between attempts
  };
  struct Outcome {
    Error error;                     // set: it failed for good
    std::shared_ptr<Stream> stream;  // else
    Hello peer;
    SessionClaim claim;  // the peer's
    std::string why;     // as `error`, without who it is about
  };
  using Done = std::function<void(Outcome)>;

  struct RetryBackoff {
    std::chrono::milliseconds all;        // attempts together; 0: until cancel()
    std::chrono::milliseconds handshake;  // each
  };

  // `claim`: what this side says of the session.
  Connector(const EndpointContext& context, PeerInfo peer, const Address& address,
            const SessionClaim& claim, RetryBackoff backoff);

  // `done` is called once, perhaps from start(). It must not destroy this object at once.
  void start(Done done);
  // Stops without calling `done`.
  void cancel();
  // Cancels it, if there is one, and destroys it later: its `done` may be what runs now.
  static void retire(EventLoop& loop, std::shared_ptr<Connector>& connector);

  Stage stage() const noexcept { return stage_; }
  // The two share a transport.
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
  void onHandshake(HandshakeOutcome outcome);
  void onRefused(RefusalCode code, std::uint16_t peer_version);
  void backOff();
  void onDeadline();
  void fail(ErrorCode code, const std::string& why);
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
  std::chrono::milliseconds pause_{0};

  Stage stage_ = Stage::kBackoff;
  UniqueFd connecting_;
  std::unique_ptr<EventLoop::Poll> poll_;
  std::shared_ptr<HandshakeRunner> handshake_;
  std::unique_ptr<EventLoop::Timer> deadline_;
  std::unique_ptr<EventLoop::Timer> pause_timer_;
  Done done_;
};

}  // namespace weft::transport
