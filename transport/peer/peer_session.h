// PeerSession: the session with one life of a peer, and the dialling for it: this side dials the
// first connection, and another one after each that broke.
//
// Threads: reconnects(): any; the rest: the loop thread. Ownership: part of its Peer. Failure: it
// returns why the peer is lost; the Peer fails.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "transport/connect/connector.h"
#include "transport/connect/endpoint_context.h"
#include "transport/session/session.h"

namespace weft::transport {

class PeerSession {
 public:
  // `on_dialled`: gets the outcome of dial(), perhaps before dial() returns; judge() explains it.
  PeerSession(const EndpointContext& context, const PeerInfo& peer, Connector::Done on_dialled)
      : context_(context), peer_(peer), on_dialled_(std::move(on_dialled)) {}

  // For the Channel only. The session gets its number on the loop thread, when claim(), match() or
  // beginLink() first needs it.
  Session& session() noexcept { return session_; }
  SessionClaim claim() { return numbered().claim(); }
  Session::Match match(const SessionClaim& theirs) { return numbered().match(theirs); }
  // As Session's.
  bool isLate(const SessionClaim& theirs) const noexcept { return session_.isLate(theirs); }

  // Whether a connection to it has been up.
  bool met() const noexcept { return session_.linkNumber() > 0; }
  // 0: not known.
  std::uint64_t incarnation() const noexcept { return incarnation_; }
  // Whether the two have met, and this incarnation is another life's.
  bool isAnother(std::uint64_t incarnation) const noexcept {
    return met() && incarnation_ != incarnation;
  }
  // Another process has taken the peer's place here, or this worker's place there.
  void setReplaced() noexcept { replaced_ = true; }
  bool replaced() const noexcept { return replaced_; }

  // Dials the peer's address: for the first connection until connect_timeout, for a later one until
  // stopDialling(). An error: the address is unknown or malformed. If a later connection has no way
  // from here to the peer, only the peer can dial, and this does nothing.
  Error dial();
  bool dialling() const noexcept { return connector_ != nullptr; }
  // The peer may have heard of the attempt.
  bool handshaking() const noexcept { return dialling() && connector_->handshaking(); }
  void stopDialling() noexcept { connector_.reset(); }
  // Why the peer is lost. Ok: adopt the outcome's stream.
  Error judge(const Connector::Outcome& outcome);

  // A connection over that transport is up.
  void beginLink(std::uint64_t incarnation, const SessionClaim& theirs, const char* transport);
  // How often a connection was made again.
  std::uint64_t reconnects() const noexcept { return reconnects_.load(std::memory_order_relaxed); }
  // The connection broke. Without another one by `deadline` the session is over. `silent`: it was
  // given up because nothing came for long.
  void breakOff(std::string how, bool silent, Session::Time deadline);
  // Moves the deadline by the time for which this process itself was suspended.
  void postpone(std::chrono::nanoseconds lost) noexcept { session_.postpone(lost); }
  bool expired(Session::Time now) const noexcept { return session_.expired(now); }
  std::chrono::milliseconds reconnectTime() const;
  // The error of a peer that sent nothing for so long.
  Error silent(std::chrono::nanoseconds silence) const;
  // The error of a peer that was not reconnected in time, and sent nothing for so long.
  Error notReconnected(std::chrono::nanoseconds silence) const;
  // The next session with this rank gets another number: nobody who dials continues this one, since
  // another peer may have the rank here before it ends.
  void leave();
  // Ends the session, too.
  void end();

 private:
  Session& numbered();  // the session, after it has got its number
  std::string describe() const;

  const EndpointContext& context_;
  const PeerInfo& peer_;
  const Connector::Done on_dialled_;
  Session session_;
  std::uint64_t incarnation_ = 0;
  bool replaced_ = false;
  std::unique_ptr<Connector> connector_;
  std::atomic<std::uint64_t> reconnects_{0};
  // Until another link is up: how the last one broke.
  std::string broken_how_;
  bool broken_silently_ = false;
};

}  // namespace weft::transport
