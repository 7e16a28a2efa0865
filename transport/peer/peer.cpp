#include "transport/peer/peer.h"

#include <algorithm>
#include <utility>

#include "transport/base/check.h"
#include "transport/base/log.h"
#include "transport/base/peer_name.h"
#include "transport/peer/peer_errors.h"

namespace weft::transport {

Peer::Peer(EndpointContext& context, PeerInfo info, std::function<void()> on_finished)
    : context_(context),
      info_(std::move(info)),
      on_finished_(std::move(on_finished)),
      channel_(context, info_, session_, *this) {}

PeerStats Peer::stats() const {
  PeerStats stats;
  stats.rank = info_.rank;
  stats.name = info_.name;
  stats.reconnects = reconnects_.load(std::memory_order_relaxed);
  channel_.fillIn(stats);
  return stats;
}

std::string Peer::describe() const { return describePeer(info_.name, info_.rank); }

// --- the state machine ---

void Peer::moveTo(PeerState to) {
  context_.loop.assertInLoop();
  WEFT_CHECK(mayFollow(state(), to), "a peer's state follows its table");
  state_.store(to, std::memory_order_release);
}

void Peer::onWorkAvailable() {
  switch (state()) {
    case PeerState::kIdle:
      if (channel_.connectionWanted()) connect();
      return;
    case PeerState::kConnected:
      return channel_.work();
    case PeerState::kClosing:
    case PeerState::kFlushed:
    case PeerState::kPeerDone:
      return channel_.flush();
    case PeerState::kLost:
    case PeerState::kClosed:
      return notifyClosed();
    case PeerState::kConnecting:
    case PeerState::kReconnecting:
    case PeerState::kLeaving:
    case PeerState::kFinished:
      return;
  }
}

void Peer::onDrained() {
  if (state() != PeerState::kClosing && state() != PeerState::kPeerDone) return;
  if (!channel_.finishWriting()) return;
  if (state() == PeerState::kClosing) return moveTo(PeerState::kFlushed);
  end(PeerState::kClosed, peer_errors::saidGoodbye(describe()));
}

void Peer::onChannelEnd(ChannelEnd ended) {
  using Kind = ChannelEnd::Kind;
  if (saidGoodbye()) {
    if (ended.kind != Kind::kGoodbye)
      return end(PeerState::kClosed, peer_errors::endedWhileClosing(describe()));
    if (state() == PeerState::kClosing) return moveTo(PeerState::kPeerDone);
    return end(PeerState::kClosed, peer_errors::saidGoodbye(describe()));
  }
  switch (ended.kind) {
    case Kind::kGoodbye:
      return fail(peer_errors::shutDown(describe(), channel_.connectedFor()));
    case Kind::kBroken:
      return reconnect(std::move(ended.how), reconnectDeadline());
    case Kind::kStale:
      reconnect(std::move(ended.how), channel_.silenceLimit());
      break_.silent = true;
      return;
    case Kind::kSilent:
      return fail(peer_errors::silent(describe(), channel_.silence(EventLoop::Clock::now()),
                                      context_.options.heartbeat_interval));
    case Kind::kProtocol:
      return fail(peer_errors::protocol(describe(), ended.problem));
  }
}

void Peer::tick(Heartbeat::Time now, std::chrono::nanoseconds late) {
  channel_.tidy();
  if (state() == PeerState::kConnected) return channel_.tick(now, late);
  if (state() != PeerState::kReconnecting && state() != PeerState::kLeaving) return;
  session_.postpone(late);
  if (session_.expired(now)) onDeadlinePassed(now);
}

// --- connecting ---

void Peer::connect() {
  moveTo(PeerState::kConnecting);
  const Result<Address> address = parseAddress(info_.address);
  if (!address.ok()) {
    return fail(info_.address.empty() ? peer_errors::noAddress(describe())
                                      : peer_errors::badAddress(describe(), address.error()));
  }
  startConnector(address.value(),
                 {context_.options.connect_timeout, context_.options.handshake_timeout});
}

void Peer::startConnector(const Address& address, Connector::RetryBackoff backoff) {
  connector_ = std::make_shared<Connector>(context_, info_, address, claim(), backoff);
  if (met() && !connector_->hasWay()) {
    connector_.reset();  // only the peer can dial
    return;
  }
  connector_->start([this](Connector::Outcome outcome) { onConnected(std::move(outcome)); });
}

void Peer::onConnected(Connector::Outcome outcome) {
  if (outcome.error && !met()) return fail(std::move(outcome.error));
  if (outcome.error)
    return fail(peer_errors::notReconnected(describe(), break_.how, ": " + outcome.why));
  if (met() && outcome.peer.incarnation != incarnation_) return failRestarted();
  if (match(outcome.claim) != Session::Match::kSame) return failLostSession();
  adopt(std::move(outcome.stream), outcome.peer, outcome.claim, Dialler::kSelf);
}

bool Peer::mayAdopt() const noexcept {
  return mayFollow(state(), PeerState::kConnected) || state() == PeerState::kLeaving;
}

void Peer::adopt(std::shared_ptr<Stream> stream, const Hello& hello, const SessionClaim& theirs,
                 Dialler dialler) {
  Connector::retire(context_.loop, connector_);
  if (theirs.received > channel_.lastSequence())
    return fail(peer_errors::badClaim(describe(), theirs.received, channel_.lastSequence()));
  const bool leaving = state() == PeerState::kLeaving;
  if (!leaving) moveTo(PeerState::kConnected);
  if (met()) {
    reconnects_.fetch_add(1, std::memory_order_relaxed);
    if (logEnabled(LogLevel::kInfo))
      log(LogLevel::kInfo, "the connection to " + describe() + " was made again: " + break_.how);
  }
  static_cast<void>(claim());
  session_.link(theirs);
  incarnation_ = hello.incarnation;
  break_ = {};
  channel_.attach(std::move(stream), incarnation_, theirs.received, dialler);
  return leaving ? sayGoodbye() : channel_.work();
}

bool Peer::handshaking() const noexcept {
  return connector_ != nullptr && connector_->stage() == Connector::Stage::kHandshaking;
}

SessionClaim Peer::claim() {
  if (session_.own() == 0) session_.setOwn(context_.sessions.of(info_.rank));
  return session_.claim();
}

Session::Match Peer::match(const SessionClaim& theirs) {
  static_cast<void>(claim());
  return session_.match(theirs);
}

bool Peer::admitsBulk(const Hello& hello, const SessionClaim& theirs) {
  return channel_.bulk().admits(hello, theirs);
}

void Peer::adoptBulk(std::shared_ptr<Stream> stream) {
  channel_.bulk().adopt(std::move(stream), weak_from_this());
}

// --- reconnecting ---

std::chrono::milliseconds Peer::reconnectTime() const {
  return std::min(context_.options.reconnect_timeout, context_.options.peer_timeout);
}

void Peer::reconnect(std::string how, Heartbeat::Time deadline, Redial redial) {
  break_ = {std::move(how), false};
  if (reconnectTime().count() <= 0) return fail(peer_errors::broken(describe(), break_.how));
  moveTo(PeerState::kReconnecting);
  session_.breakOff(deadline);
  channel_.detach();
  if (redial == Redial::kNow) return this->redial();
  context_.loop.post(
      [self = std::static_pointer_cast<Peer>(shared_from_this())] { self->redial(); });
}

bool Peer::yieldLink() {
  channel_.drain();  // what it still brings need not be sent again
  if (state() == PeerState::kConnected) {
    reconnect(
        "its connection broke after " + channel_.connectedFor() + ", which the peer noticed first",
        reconnectDeadline(), Redial::kUnlessAdopted);
  }
  return state() == PeerState::kReconnecting;
}

void Peer::redial() {
  const bool wanted = state() == PeerState::kReconnecting || state() == PeerState::kLeaving;
  if (!wanted || connector_ != nullptr) return;
  const Result<Address> address = parseAddress(info_.address);
  if (!address.ok()) return;  // only the peer can dial
  // Several attempts should fit into the time there is.
  const auto handshake = std::clamp(reconnectTime() / 4, std::chrono::milliseconds(20),
                                    context_.options.handshake_timeout);
  startConnector(address.value(), {std::chrono::milliseconds(0), handshake});
}

void Peer::onDeadlinePassed(Heartbeat::Time now) {
  if (break_.silent) {
    return fail(peer_errors::silent(describe(), channel_.silence(now),
                                    context_.options.heartbeat_interval));
  }
  const std::string last =
      connector_ != nullptr ? " (last: " + connector_->lastProblem() + ")" : "";
  fail(peer_errors::notReconnected(describe(), break_.how,
                                   " within " + seconds(reconnectTime()) + last));
}

// --- endings ---

bool Peer::saidGoodbye() const noexcept {
  return state() == PeerState::kClosing || state() == PeerState::kFlushed ||
         state() == PeerState::kPeerDone;
}

void Peer::fail(Error reason) {
  // Whoever is leaving a peer hears no more of it.
  const bool leaving = saidGoodbye() || state() == PeerState::kLeaving;
  end(leaving ? PeerState::kClosed : PeerState::kLost, std::move(reason));
}

void Peer::failRestarted() { fail(peer_errors::restarted(describe())); }

void Peer::failLostSession() { fail(peer_errors::lostSession(describe())); }

void Peer::closeGracefully() {
  switch (state()) {
    case PeerState::kIdle:
      return closeNow();
    case PeerState::kConnecting:
      return channel_.connectionWanted() ? moveTo(PeerState::kLeaving) : closeNow();
    case PeerState::kReconnecting:
      return moveTo(PeerState::kLeaving);
    case PeerState::kConnected:
      return sayGoodbye();
    default:
      return;  // it is ending
  }
}

void Peer::sayGoodbye() {
  moveTo(PeerState::kClosing);
  channel_.sayGoodbye();
}

void Peer::closeNow() { end(PeerState::kClosed, peer_errors::closedEarly(describe())); }

void Peer::end(PeerState how, Error reason) {
  if (over()) return;
  moveTo(how);
  if (logEnabled(LogLevel::kInfo)) log(LogLevel::kInfo, reason.text());
  reason_ = std::move(reason);
  session_.end();
  context_.sessions.forget(info_.rank, session_.own());
  Connector::retire(context_.loop, connector_);
  // Deferred: the handler is never called from within send() or another of its methods.
  if (channel_.close(reason_)) {
    context_.loop.post([self = shared_from_this()] { self->onWorkAvailable(); });
  }
}

void Peer::notifyClosed() {
  if (channel_.writing()) return;
  for (const OutFrame& frame : channel_.takeUnsent())
    context_.handler.onSendFailed(info_.rank, frame.header(), reason_);
  const bool lost = state() == PeerState::kLost;
  moveTo(PeerState::kFinished);
  if (lost) context_.handler.onPeerLost({info_.rank, info_.name, reason_});
  on_finished_();
}

}  // namespace weft::transport
