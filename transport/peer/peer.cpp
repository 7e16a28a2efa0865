#include "transport/peer/peer.h"

#include <utility>

#include "transport/base/check.h"
#include "transport/base/log.h"
#include "transport/base/peer_name.h"
#include "transport/base/thrown.h"
#include "transport/peer/peer_errors.h"

namespace weft::transport {

Peer::Peer(EndpointContext& context, PeerInfo info, std::function<void()> on_finished)
    : context_(context),
      info_(std::move(info)),
      on_finished_(std::move(on_finished)),
      session_(context, info_,
               [this](Connector::Outcome outcome) {
                 failIfThrown([&] { onConnected(std::move(outcome)); });
               }),
      channel_(context, info_, session_.session(), *this) {}

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
  if (state() != PeerState::kClosing && state() != PeerState::kPeerDone) return;
  if (!channel_.finishWriting()) return;
  if (state() == PeerState::kClosing) return moveTo(PeerState::kFlushed);
  end(PeerState::kClosed, peer_errors::saidGoodbye(describe()));
}

void Peer::onLinkEnd(LinkEnd ended) {
  using Kind = LinkEnd::Kind;
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
    case Kind::kQuiet:
      return reconnect(std::move(ended.how), channel_.heartbeat().limit(), /*silent=*/true);
    case Kind::kSilent:
      return failSilent(EventLoop::Clock::now());
    case Kind::kProtocol:
      return fail(peer_errors::protocol(describe(), ended.problem));
  }
}

void Peer::tick(Heartbeat::Time now, std::chrono::nanoseconds late) {
  channel_.tidy();
  // What was missed for lack of memory.
  if (over() && !finished()) channel_.close(reason_);
  onWorkAvailable();
  if (state() == PeerState::kConnected) return channel_.tick(now, late);
  if (state() != PeerState::kReconnecting && state() != PeerState::kLeaving) return;
  session_.postpone(late);
  if (session_.expired(now)) onDeadlinePassed(now);
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

bool Peer::mayAdopt() const noexcept {
  return mayFollow(state(), PeerState::kConnected) || state() == PeerState::kLeaving;
}

void Peer::adopt(std::shared_ptr<Stream> stream, const Hello& hello, const SessionClaim& theirs,
                 Dialler dialler) {
  session_.stopDialling();
  const bool leaving = state() == PeerState::kLeaving;
  // In one step, so that a connected peer always has a link.
  failIfThrown([&] {
    const std::uint64_t sent = channel_.outbox().lastSequence();
    if (theirs.received > sent)
      return fail(peer_errors::badClaim(describe(), theirs.received, sent));
    if (!leaving) moveTo(PeerState::kConnected);
    if (session_.met()) {
      reconnects_.fetch_add(1, std::memory_order_relaxed);
      if (logEnabled(LogLevel::kInfo))
        log(LogLevel::kInfo,
            "the connection to " + describe() + " was made again: " + session_.howItBroke());
    } else if (logEnabled(LogLevel::kDebug)) {
      log(LogLevel::kDebug, "connected to " + describe() + " over " + stream->transportName());
    }
    session_.beginLink(hello.incarnation, theirs);
    channel_.attach(std::move(stream), incarnation(), theirs.received, dialler);
  });
  if (over()) return;
  return leaving ? sayGoodbye() : channel_.work();
}

RefusalCode Peer::admit(const Hello& hello, const SessionClaim& theirs) {
  if (over()) {
    // A life that was lost here stays out, so that both sides agree that it is over. Another life,
    // or one that left in order, is treated as unknown.
    const bool same_life = session_.met() && incarnation() == hello.incarnation &&
                           reason_.code() != ErrorCode::kPeerClosed;
    // Where the two may meet again, Admission tells an old session from a new one.
    return same_life && !mayReturn() ? RefusalCode::kStale : RefusalCode::kNone;
  }
  if (info_.name != hello.name) return RefusalCode::kIdentity;
  if (saidGoodbye()) return RefusalCode::kDuplicate;
  if (session_.isAnother(hello.incarnation)) return admitAnotherLife(hello, theirs);
  switch (session_.match(theirs)) {
    case Session::Match::kUnknown:
      return RefusalCode::kStale;
    case Session::Match::kAnother:
      fail(peer_errors::lostSession(describe()));
      return RefusalCode::kNone;
    case Session::Match::kSame:
      break;
  }
  if (state() == PeerState::kConnected) {
    if (session_.isLate(theirs)) return RefusalCode::kDuplicate;
    return yieldLink() ? RefusalCode::kNone : RefusalCode::kStale;
  }
  // The peer may have answered this side's dial already.
  return session_.handshaking() && context_.self.rank < hello.rank ? RefusalCode::kDuplicate
                                                                   : RefusalCode::kNone;
}

// A process that holds the key may claim any rank. This life keeps its rank as long as it is heard
// from.
RefusalCode Peer::admitAnotherLife(const Hello& hello, const SessionClaim& theirs) {
  if (theirs.peer != 0) return RefusalCode::kDisplaced;    // it was here before this life
  if (state() == PeerState::kConnected) channel_.drain();  // the link's end may have come
  if (over()) return RefusalCode::kNone;
  const auto silence = channel_.heartbeat().silence(EventLoop::Clock::now());
  if (state() == PeerState::kConnected && silence < 3 * context_.options.heartbeat_interval) {
    if (std::exchange(warned_of_, hello.incarnation) != hello.incarnation) {
      log(LogLevel::kWarning, "another process says that it is " + describe() +
                                  ", which is alive; it is refused as long as that one is");
    }
    return RefusalCode::kDuplicate;
  }
  session_.setReplaced();
  fail(peer_errors::restarted(describe()));
  return RefusalCode::kNone;
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

// Gives up the link for another one of the same session, with which adopt() is called next. False:
// reading the rest of the link showed that the peer is gone.
bool Peer::yieldLink() {
  channel_.drain();  // what has arrived need not be sent again
  if (state() == PeerState::kConnected) {
    reconnect(
        "its connection broke after " + channel_.connectedFor() + ", which the peer noticed first",
        reconnectDeadline());
  }
  return state() == PeerState::kReconnecting;
}

void Peer::redial() {
  const bool wanted = state() == PeerState::kReconnecting || state() == PeerState::kLeaving;
  if (!wanted || session_.dialling()) return;
  // Without an address only the peer can dial.
  failIfThrown([&] { static_cast<void>(session_.dial()); });
}

void Peer::onDeadlinePassed(Heartbeat::Time now) {
  if (session_.brokeSilently()) return failSilent(now);
  fail(session_.notReconnected());
}

// --- endings ---

bool Peer::mayReturn() const noexcept {
  const bool lost = reason_.code() == ErrorCode::kPeerLost ||
                    reason_.code() == ErrorCode::kConnectFailed ||
                    reason_.code() == ErrorCode::kDuplicate;
  return over() && lost && !session_.replaced() && context_.options.reunite;
}

bool Peer::saidGoodbye() const noexcept {
  return state() == PeerState::kClosing || state() == PeerState::kFlushed ||
         state() == PeerState::kPeerDone;
}

void Peer::fail(Error reason) {
  // The handler is not told of the loss of a peer that this side is leaving.
  const bool leaving = saidGoodbye() || state() == PeerState::kLeaving;
  end(leaving ? PeerState::kClosed : PeerState::kLost, std::move(reason));
}

void Peer::displacedThere() {
  session_.setReplaced();
  reason_ = peer_errors::displaced(describe());
  channel_.outbox().shut(reason_);
  tell([&] { context_.handler.onDisplaced({info_.rank, info_.name, reason_}); });
}

void Peer::failSilent(Heartbeat::Time now) {
  fail(peer_errors::silent(describe(), channel_.heartbeat().silence(now),
                           context_.options.heartbeat_interval));
}

void Peer::closeGracefully() {
  session_.leave();
  switch (state()) {
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
  if (over()) return;
  moveTo(how);
  // If something throws from here on, tick() goes on.
  reason_ = std::move(reason);
  session_.end();
  if (logEnabled(LogLevel::kInfo)) log(LogLevel::kInfo, reason_.text());
  channel_.close(reason_);
  // Deferred: the handler is never called from within send() or another of its methods.
  channel_.postWork();
}

void Peer::notifyClosed() {
  const PeerLoss loss{info_.rank, info_.name, reason_};  // if it throws, the next tick tells
  auto unsent = channel_.outbox().takeUnsent();
  if (!unsent) return;  // a caller still writes
  for (const OutFrame& frame : *unsent)
    tell([&] { context_.handler.onSendFailed(info_.rank, frame.header(), reason_); });
  unsent.reset();
  channel_.tidy();
  const bool lost = state() == PeerState::kLost;
  moveTo(PeerState::kFinished);
  if (lost) tell([&] { context_.handler.onPeerLost(loss); });
  on_finished_();
}

// What the handler throws is logged, so that the rest is told and on_finished_ is called.
template <typename Call>
void Peer::tell(Call call) {
  if (const auto thrown = thrownBy(call))
    static_cast<void>(thrownBy([&] {
      log(LogLevel::kError, "a handler of the end of " + describe() + " threw: " + *thrown);
    }));
}

}  // namespace weft::transport
