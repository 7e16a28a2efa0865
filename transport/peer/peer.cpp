#include "transport/peer/peer.h"

#include <utility>

#include "transport/base/log.h"
#include "transport/base/peer_name.h"
#include "transport/base/thrown.h"
#include "transport/peer/peer_errors.h"

namespace weft::transport {

Peer::Peer(EndpointContext& context, PeerInfo info, std::function<void()> on_finished)
    : context_(context),
      info_(std::move(info)),
      on_finished_(std::move(on_finished)),
      end_(context, info_),
      session_(context, info_,
               [this](Connector::Outcome outcome) {
                 failIfThrown([&] { onConnected(std::move(outcome)); });
               }),
      channel_(context, info_, session_.session(), *this) {}

PeerStats Peer::stats() const {
  PeerStats stats;
  stats.rank = info_.rank;
  stats.name = info_.name;
  stats.reconnects = session_.reconnects();
  channel_.fillIn(stats);
  return stats;
}

std::string Peer::describe() const { return describePeer(info_.name, info_.rank); }

// --- the state machine ---

void Peer::moveTo(PeerState to) {
  context_.loop.assertInLoop();
  life_.moveTo(to);
}

void Peer::onWorkAvailable() {
  switch (life_.now()) {
    case PeerState::kIdle:
      if (channel_.outbox().connectionWanted()) connect();
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
  if (life_.now() != PeerState::kClosing && life_.now() != PeerState::kPeerDone) return;
  if (!channel_.finishWriting()) return;
  if (life_.now() == PeerState::kClosing) return moveTo(PeerState::kFlushed);
  end(PeerState::kClosed, peer_errors::saidGoodbye(describe()));
}

void Peer::onLinkEnd(LinkEnd ended) {
  using Kind = LinkEnd::Kind;
  if (life_.saidGoodbye()) {
    if (ended.kind != Kind::kGoodbye)
      return end(PeerState::kClosed, peer_errors::endedWhileClosing(describe()));
    if (life_.now() == PeerState::kClosing) return moveTo(PeerState::kPeerDone);
    return end(PeerState::kClosed, peer_errors::saidGoodbye(describe()));
  }
  switch (ended.kind) {
    case Kind::kGoodbye:
      return fail(peer_errors::shutDown(describe(), channel_.connectedFor()));
    case Kind::kBroken:
      return reconnect(std::move(ended.how), reconnectDeadline());
    case Kind::kQuiet:
      return reconnect(std::move(ended.how), channel_.heartbeat().limit(), /*silent=*/true);
    case Kind::kSilent:
      return fail(session_.silent(silence()));
    case Kind::kProtocol:
      return fail(peer_errors::protocol(describe(), ended.problem));
  }
}

void Peer::tick(Heartbeat::Time now, std::chrono::nanoseconds late) {
  channel_.tidy();
  // What was missed for lack of memory. If there still is none, other peers have their ticks.
  const bool ending = life_.over() && !life_.finished();
  if (ending && thrownBy([&] { channel_.close(end_.reason()); })) return;
  onWorkAvailable();
  if (life_.now() == PeerState::kConnected) return channel_.tick(now, late);
  if (life_.now() != PeerState::kReconnecting && life_.now() != PeerState::kLeaving) return;
  session_.postpone(late);
  if (session_.expired(now)) fail(session_.notReconnected(silence()));
}

// --- connecting ---

void Peer::connect() {
  moveTo(PeerState::kConnecting);
  failIfThrown([&] {
    if (const Error why = session_.dial()) fail(peer_errors::unreachable(describe(), why));
  });
}

// If the step throws, the work of the present state was not begun, and nothing would end the state.
template <typename Step>
void Peer::failIfThrown(Step step) {
  if (const auto thrown = thrownBy(step)) fail(peer_errors::notServed(describe(), *thrown));
}

void Peer::onConnected(Connector::Outcome outcome) {
  if (Error lost = session_.judge(outcome)) return fail(std::move(lost));
  adopt(std::move(outcome.stream), outcome.peer, outcome.claim, Dialler::kSelf);
}

void Peer::adopt(std::shared_ptr<Stream> stream, const Hello& hello, const SessionClaim& theirs,
                 Dialler dialler) {
  session_.stopDialling();
  const bool leaving = life_.now() == PeerState::kLeaving;
  // In one step, so that a connected peer always has a link.
  failIfThrown([&] {
    const std::uint64_t sent = channel_.outbox().lastSequence();
    if (theirs.received > sent)
      return fail(peer_errors::badClaim(describe(), theirs.received, sent));
    if (!leaving) moveTo(PeerState::kConnected);
    session_.beginLink(hello.incarnation, theirs, stream->transportName());
    channel_.attach(std::move(stream), hello.incarnation, theirs.received, dialler);
  });
  if (life_.over()) return;
  return leaving ? sayGoodbye() : channel_.work();
}

// --- reconnecting ---

void Peer::reconnect(std::string how, Heartbeat::Time deadline, bool silent) {
  if (session_.reconnectTime().count() <= 0) return fail(peer_errors::broken(describe(), how));
  moveTo(PeerState::kReconnecting);
  session_.breakOff(std::move(how), silent, deadline);
  failIfThrown([&] {
    channel_.detach();
    // Later, because the peer's own dial may be what ended the link.
    context_.loop.post(
        [self = std::static_pointer_cast<Peer>(shared_from_this())] { self->redial(); });
  });
}

void Peer::readRest() {
  if (life_.now() == PeerState::kConnected) channel_.drain();
}

bool Peer::yieldLink() {
  readRest();  // what has arrived need not be sent again
  if (life_.now() == PeerState::kConnected) {
    reconnect(
        "its connection broke after " + channel_.connectedFor() + ", which the peer noticed first",
        reconnectDeadline());
  }
  return life_.now() == PeerState::kReconnecting;
}

void Peer::redial() {
  const bool wanted = life_.now() == PeerState::kReconnecting || life_.now() == PeerState::kLeaving;
  if (!wanted || session_.dialling()) return;
  // Without an address only the peer can dial.
  failIfThrown([&] { static_cast<void>(session_.dial()); });
}

// --- endings ---

void Peer::fail(Error reason) {
  // The handler is not told of the loss of a peer that this side is leaving.
  const bool leaving = life_.saidGoodbye() || life_.now() == PeerState::kLeaving;
  end(leaving ? PeerState::kClosed : PeerState::kLost, std::move(reason));
}

void Peer::displacedThere() {
  session_.setReplaced();
  end_.set(peer_errors::displaced(describe()));
  channel_.outbox().shut(end_.reason());
  end_.tellDisplaced();
}

void Peer::closeGracefully() {
  session_.leave();
  switch (life_.now()) {
    case PeerState::kIdle:
      return closeNow();
    case PeerState::kConnecting:
      return channel_.outbox().connectionWanted() ? moveTo(PeerState::kLeaving) : closeNow();
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
  failIfThrown([&] { channel_.sayGoodbye(); });
}

void Peer::closeNow() { end(PeerState::kClosed, peer_errors::closedEarly(describe())); }

void Peer::end(PeerState how, Error reason) {
  if (life_.over()) return;
  moveTo(how);
  // If something throws from here on, tick() goes on.
  end_.set(std::move(reason));
  session_.end();
  if (logEnabled(LogLevel::kInfo)) log(LogLevel::kInfo, end_.reason().text());
  channel_.close(end_.reason());
  // Deferred: the handler is never called from within send() or another of its methods.
  channel_.postWork();
}

void Peer::notifyClosed() {
  auto unsent = channel_.outbox().takeUnsent();
  if (!unsent) return;  // a caller still writes
  end_.tellUnsent(*unsent);
  unsent.reset();
  channel_.tidy();
  const bool lost = life_.now() == PeerState::kLost;
  moveTo(PeerState::kFinished);
  if (lost) end_.tellLost();
  on_finished_();
}

}  // namespace weft::transport
