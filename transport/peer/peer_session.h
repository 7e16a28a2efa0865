// PeerSession: the session with one life of a peer, and what this side does to have a connection
// for it: it dials the first one, and another one after each that broke.
//
// Threads: the loop thread. Ownership: part of its Peer. Failure: it says why the peer is lost, and
// leaves it to the Peer to fail.
#pragma once

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
  // `on_dialled`: what came of dial(), perhaps before that returns; judge() says what it means.
  PeerSession(const EndpointContext& context, const PeerInfo& peer, Connector::Done on_dialled)
      : context_(context), peer_(peer), on_dialled_(std::move(on_dialled)) {}

  // For the Channel only. It has no number before claim(), match() or link(): that is drawn on the
  // loop thread, when it is first needed.
  Session& session() noexcept { return session_; }
  SessionClaim claim() { return numbered().claim(); }
  Session::Match match(const SessionClaim& theirs) { return numbered().match(theirs); }
  // A claim for a connection that is up already, or was.
  bool isLate(const SessionClaim& theirs) const noexcept { return session_.isLate(theirs); }

  // A connection was up.
  bool met() const noexcept { return session_.link() > 0; }
  // 0: not known.
  std::uint64_t incarnation() const noexcept { return incarnation_; }
  // The two have met, and this is another life.
  bool isAnother(std::uint64_t incarnation) const noexcept {
    return met() && incarnation_ != incarnation;
  }
  // Another process has the peer's place here, or this worker's place there.
  void setReplaced() noexcept { replaced_ = true; }
  bool replaced() const noexcept { return replaced_; }

  // Makes a connection: the first one within connect_timeout, another one until stopDialling().
  // Nothing comes of it where only the peer can dial.
  void dial(const Address& address);
  bool dialling() const noexcept { return connector_ != nullptr; }
  // The peer may have heard of the attempt.
  bool handshaking() const noexcept { return dialling() && connector_->handshaking(); }
  void stopDialling() noexcept { connector_.reset(); }
  // Why the peer is lost. Ok: the stream is to be adopted.
  Error judge(const Connector::Outcome& outcome);

  // A connection is up.
  void link(std::uint64_t incarnation, const SessionClaim& theirs);
  // It broke. Without another one by `deadline` the session is over. `silent`: nothing came for
  // long.
  void breakOff(std::string how, bool silent, Session::Time deadline);
  const std::string& howItBroke() const noexcept { return broken_how_; }
  bool brokeSilently() const noexcept { return broken_silently_; }
  // Moves the deadline by the time that this process itself was suspended.
  void postpone(std::chrono::nanoseconds lost) noexcept { session_.postpone(lost); }
  bool expired(Session::Time now) const noexcept { return session_.expired(now); }
  std::chrono::milliseconds reconnectTime() const;
  // That time is over.
  Error notReconnected() const;
  // The next session with this rank is another one.
  void end();

 private:
  Session& numbered();
  std::string describe() const;

  const EndpointContext& context_;
  const PeerInfo& peer_;
  const Connector::Done on_dialled_;
  Session session_;
  std::uint64_t incarnation_ = 0;
  bool replaced_ = false;
  std::unique_ptr<Connector> connector_;
  // Until another link is up: how the last one broke.
  std::string broken_how_;
  bool broken_silently_ = false;
};

}  // namespace weft::transport
