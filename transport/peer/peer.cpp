#include "transport/peer/peer.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "transport/base/check.h"
#include "transport/base/log.h"
#include "transport/base/peer_name.h"
#include "transport/base/system_error.h"

namespace weft::transport {
namespace {

constexpr std::chrono::milliseconds kCrowdedPause{5};

}  // namespace

const char* toString(PeerState state) noexcept {
  switch (state) {
    case PeerState::kIdle:
      return "idle";
    case PeerState::kDialling:
      return "dialling";
    case PeerState::kConnected:
      return "connected";
    case PeerState::kReconnecting:
      return "reconnecting";
    case PeerState::kClosing:
      return "closing";
    case PeerState::kGone:
      return "gone";
  }
  return "?";
}

std::shared_ptr<Peer> Peer::make(PeerContext& context, PeerInfo info) {
  return std::shared_ptr<Peer>(new Peer(context, std::move(info)));
}

Peer::Peer(PeerContext& context, PeerInfo info)
    : context_(context),
      info_(std::move(info)),
      outbox_(
          context.options.limits, describePeer(info_.name, info_.rank),
          [this] { context_.loop.post([self = shared_from_this()] { self->onWorkAvailable(); }); },
          context.options.reconnect_timeout.count() > 0),
      arena_out_(
          context.options.arena,
          [this] { context_.loop.post([self = shared_from_this()] { self->offerArena(); }); },
          [this](const std::shared_ptr<SharedCopy>& copy) { helpCopy(context_.loop, copy); }),
      address_(info_.address) {}

// --- any thread ---

Error Peer::send(Message message, std::chrono::milliseconds wait) {
  // The loop thread serves every peer: it does not copy for one.
  ArenaPlacement placement =
      context_.loop.inLoop() ? ArenaPlacement() : arena_out_.place(message, outbox_.mayExport());
  Result<OutFrame> frame =
      OutFrame::message(std::move(message), context_.options.limits, std::move(placement));
  if (!frame.ok()) {
    return {frame.error().code(), "cannot send to " + describe() + ": " + frame.error().text()};
  }
  if (frame.value().carried() >= context_.options.bulk.threshold) noteLarge();
  if (context_.loop.inLoop()) return outbox_.send(std::move(frame).value(), std::nullopt);
  return outbox_.send(std::move(frame).value(), wait);
}

PeerStats Peer::stats() const {
  const OutboxStats out = outbox_.stats();
  const ArenaStats arena = arena_out_.stats();
  const std::uint64_t by_bulk = bulk_counts_->sent.load(std::memory_order_relaxed);
  return {info_.rank,
          info_.name,
          out.transport,
          out.bytes_sent + arena.bytes_sent + by_bulk,
          bytes_received_.load(std::memory_order_relaxed) +
              arena_bytes_received_.load(std::memory_order_relaxed) +
              bulk_counts_->received.load(std::memory_order_relaxed),
          out.messages_sent,
          messages_received_.load(std::memory_order_relaxed),
          out.queued_bytes + out.unacked_bytes,
          arena.bytes_sent,
          arena.fallbacks,
          by_bulk,
          reconnects_.load(std::memory_order_relaxed)};
}

// --- loop thread ---

void Peer::moveTo(PeerState state) {
  context_.loop.assertInLoop();
  WEFT_CHECK(mayFollow(state_, state), "a peer's state follows its table");
  state_ = state;
}

bool Peer::handshaking() const noexcept {
  return connector_ != nullptr && connector_->stage() == Connector::Stage::kHandshaking;
}

void Peer::setAddress(std::string address) { address_ = std::move(address); }

void Peer::onWorkAvailable() {
  switch (state_) {
    case PeerState::kIdle:
      if (outbox_.connectionWanted()) dial();
      return;
    case PeerState::kDialling:
    case PeerState::kReconnecting:
      return;
    case PeerState::kConnected:
    case PeerState::kClosing:
      return flush();
    case PeerState::kGone:
      return finish();
  }
}

void Peer::dial() {
  moveTo(PeerState::kDialling);
  Result<Address> address = parseAddress(address_);
  if (!address.ok()) {
    return lose({ErrorCode::kConnectFailed,
                 address_.empty() ? describe() + " cannot be reached: its address is not known here"
                                  : describe() + " cannot be reached: " + address.error().text()});
  }
  startConnector(address.value(),
                 {context_.options.connect_timeout, context_.options.handshake_timeout});
}

void Peer::startConnector(const Address& address, Connector::RetryBackoff patience) {
  connector_ = std::make_shared<Connector>(context_.loop, context_.options, context_.self, info_,
                                           address, context_.own_host, claim(), patience);
  if (state_ == PeerState::kReconnecting && !connector_->hasWay()) {
    connector_.reset();  // only the peer can dial
    return;
  }
  connector_->start([this](Connector::Outcome outcome) { onDialled(std::move(outcome)); });
}

void Peer::onDialled(Connector::Outcome outcome) {
  const bool again = state_ == PeerState::kReconnecting;
  if (outcome.error && !again) return lose(std::move(outcome.error));
  if (outcome.error) {
    return lose({ErrorCode::kPeerLost, describe() + " is lost: " + broke_ +
                                           ", and no other could be made: " + outcome.why +
                                           ". Look at its own output; to go on, start the group "
                                           "again"});
  }
  if (again && outcome.peer.incarnation != incarnation_) return lose(startedAgain());
  if (match(outcome.claim) != Session::Match::kSame) return lose(begunAnew());
  adopt(std::move(outcome.stream), outcome.peer, outcome.claim, Dialler::kSelf);
}

void Peer::adopt(std::shared_ptr<Stream> stream, const Hello& hello, const SessionClaim& theirs,
                 Dialler dialler) {
  retire(connector_);
  if (theirs.received > outbox_.lastSequence()) {
    return lose({ErrorCode::kProtocol, describe() + " is cut off: it has received message " +
                                           std::to_string(theirs.received) + ", of " +
                                           std::to_string(outbox_.lastSequence()) + " sent"});
  }
  moveTo(PeerState::kConnected);
  const auto now = EventLoop::Clock::now();
  if (session_.state() == SessionState::kNew) {
    connected_at_ = now;
  } else {
    reconnects_.fetch_add(1, std::memory_order_relaxed);
    if (logEnabled(LogLevel::kInfo)) {
      log(LogLevel::kInfo, "the connection to " + describe() + " was made again: " + broke_);
    }
  }
  static_cast<void>(claim());
  session_.link(theirs);
  incarnation_ = hello.incarnation;
  fell_silent_ = false;
  arena_offered_ = false;
  arena_seen_ = false;
  dialled_ = dialler == Dialler::kSelf;
  heartbeat_.emplace(now, context_.options.heartbeat_interval, context_.options.peer_timeout);
  outbox_.attach(stream, theirs.received);
  link_ = std::make_shared<Link>(
      context_.loop, std::move(stream), context_.options.limits, *this, session_.received(),
      bytes_received_,
      Link::Events{[this](const LinkEnd& end) { onLinkEnd(end); }, [this] { flush(); }});
  if (leaving_) return sayGoodbye();
  offerArena();
  connectBulk();
  flush();
}

void Peer::flush() {
  if (link_ == nullptr) return;
  int broken = 0;
  switch (outbox_.flush(broken)) {
    case Outbox::Flushed::kBusy:
      return;
    case Outbox::Flushed::kBlocked:
      return link_->wantWrite(true);
    case Outbox::Flushed::kCrowded:
      link_->wantWrite(false);
      return context_.loop.runAfter(kCrowdedPause,
                                    [self = shared_from_this()] { self->onWorkAvailable(); });
    case Outbox::Flushed::kDrained:
      link_->wantWrite(false);
      if (state_ == PeerState::kClosing && (bulk_ == nullptr || bulk_->written()) &&
          !std::exchange(wrote_all_, true)) {
        link_->stream().finishWriting();
        closeIfDone();
      }
      return;
    case Outbox::Flushed::kBroken: {
      // It may have said goodbye before: what it sent tells more than the errno.
      const std::shared_ptr<Link> keep = link_;
      keep->drain();
      if (link_ != keep) return;
      const std::string how =
          "its connection broke after " + connectedFor() + " (" + errnoName(broken) + ")";
      if (state_ == PeerState::kClosing) return go(brokenReason(how), false);
      return breakLink(how, EventLoop::Clock::now() + reconnectTime());
    }
  }
}

void Peer::onLinkEnd(const LinkEnd& end) {
  if (state_ == PeerState::kClosing) {
    if (end.kind == LinkEnd::Kind::kGoodbye) {
      peer_ended_ = true;
      return closeIfDone();
    }
    return go({ErrorCode::kShutdown, describe() + " ended while this endpoint was closing"}, false);
  }
  switch (end.kind) {
    case LinkEnd::Kind::kGoodbye:
      return lose(
          {ErrorCode::kPeerClosed, describe() + " has shut down in order, " + connectedFor() +
                                       " after it connected; nothing more can be sent to it"});
    case LinkEnd::Kind::kEnd:
      return breakLink("its connection ended after " + connectedFor() + " without a goodbye",
                       EventLoop::Clock::now() + reconnectTime());
    case LinkEnd::Kind::kFailed:
      return breakLink(
          "its connection broke after " + connectedFor() + " (" + errnoName(end.error) + ")",
          EventLoop::Clock::now() + reconnectTime());
    case LinkEnd::Kind::kProtocol: {
      // Not the peer's fault, and what could not be had comes in another form over another link.
      if (end.problem.code() == ErrorCode::kSystem) {
        return breakLink("its connection was given up after " + connectedFor() + " because " +
                             end.problem.text(),
                         EventLoop::Clock::now() + reconnectTime());
      }
      const std::string why = handler_problem_.empty() ? end.problem.text() : handler_problem_;
      return lose({end.problem.code(), describe() + " is cut off: " + why +
                                           "; check that both run the same versions and limits"});
    }
  }
}

Error Peer::brokenReason(const std::string& how) const {
  return {ErrorCode::kPeerLost, describe() + " is lost: " + how +
                                    "; its process was probably killed or its host is down. Look "
                                    "at its own output; to go on, start the group again"};
}

Error Peer::startedAgain() const {
  return {ErrorCode::kPeerLost,
          describe() + " is lost: it was started again. What refers to its former life fails"};
}

Error Peer::begunAnew() const {
  return {ErrorCode::kPeerLost, describe() +
                                    " is lost: it has forgotten what was said before, because it "
                                    "had given this worker up or removed it"};
}

// --- links, one after the other ---

std::chrono::milliseconds Peer::reconnectTime() const {
  return std::min(context_.options.reconnect_timeout, context_.options.peer_timeout);
}

SessionClaim Peer::claim() {
  if (session_.own() == 0) session_.setOwn(context_.session_of(info_.rank));
  return session_.claim();
}

Session::Match Peer::match(const SessionClaim& theirs) {
  static_cast<void>(claim());
  return session_.match(theirs);
}

void Peer::breakLink(std::string how, Heartbeat::Time deadline, Redial redial) {
  broke_ = std::move(how);
  if (reconnectTime().count() <= 0) return lose(brokenReason(broke_));
  moveTo(PeerState::kReconnecting);
  session_.breakOff(deadline);
  dropLink();
  std::move(arena_taking_.begin(), arena_taking_.end(), std::back_inserter(arena_taken_));
  arena_taking_.clear();
  outbox_.detach();
  if (redial == Redial::kNow) return this->redial();
  context_.loop.post([self = shared_from_this()] { self->redial(); });
}

bool Peer::yieldLink() {
  const std::shared_ptr<Link> keep = link_;
  keep->drain();  // what it still brings need not be sent again
  if (state_ == PeerState::kConnected) {
    breakLink("its connection broke after " + connectedFor() + ", as the peer noticed",
              EventLoop::Clock::now() + reconnectTime(), Redial::kUnlessAdopted);
  }
  return state_ == PeerState::kReconnecting;
}

void Peer::redial() {
  if (state_ != PeerState::kReconnecting || connector_ != nullptr) return;
  const Result<Address> address = parseAddress(address_);
  if (!address.ok()) return;  // only the peer can dial
  // Several attempts should fit into the time there is.
  const auto handshake = std::clamp(reconnectTime() / 4, std::chrono::milliseconds(20),
                                    context_.options.handshake_timeout);
  startConnector(address.value(), {std::chrono::milliseconds(0), handshake});
}

void Peer::giveUp(Heartbeat::Time now) {
  if (fell_silent_) return lose(silentReason(now));
  const std::string last =
      connector_ != nullptr ? " (last: " + connector_->lastProblem() + ")" : "";
  lose({ErrorCode::kPeerLost, describe() + " is lost: " + broke_ +
                                  ", and no other could be made within " +
                                  seconds(reconnectTime()) + last +
                                  ". Look at its own output; to go on, start the group again"});
}

void Peer::dropLink() {
  if (link_ == nullptr) return;
  link_->stream().breakOff();  // also ends a caller's write
  link_->abandon();
  dropLane();
  context_.loop.post([link = std::exchange(link_, nullptr)]() mutable { link.reset(); });
}

void Peer::tick(Heartbeat::Time now, std::chrono::nanoseconds late) {
  outbox_.tidy();
  if (state_ == PeerState::kReconnecting) {
    session_.postpone(late);
    if (session_.expired(now)) giveUp(now);
    return;
  }
  if (state_ != PeerState::kConnected) return;
  arena_out_.tick(now);
  if (session_.ackOverdue(outbox_.lastAckSent()) && outbox_.control(FrameKind::kAck)) flush();
  if (state_ == PeerState::kConnected) beat(now, late);
}

void Peer::beat(Heartbeat::Time now, std::chrono::nanoseconds late) {
  const auto verdict = [&](std::chrono::nanoseconds lost) {
    return heartbeat_->tick(now, lost, outbox_.stats().bytes_sent,
                            bytes_received_.load(std::memory_order_relaxed) +
                                bulk_counts_->received.load(std::memory_order_relaxed));
  };
  switch (verdict(late)) {
    case Heartbeat::Verdict::kFine:
      return;
    case Heartbeat::Verdict::kSend:
      // Bytes that wait to be written say the same.
      if (outbox_.idle() && outbox_.control(FrameKind::kHeartbeat)) flush();
      return;
    case Heartbeat::Verdict::kStale:
    case Heartbeat::Verdict::kSuspect: {
      // It may have spoken while this loop was busy elsewhere.
      const std::shared_ptr<Link> keep = link_;
      keep->readSome();
      if (link_ != keep || state_ != PeerState::kConnected) return;
      const auto still = verdict(std::chrono::nanoseconds(0));
      if (still == Heartbeat::Verdict::kSuspect) return lose(silentReason(now));
      if (still != Heartbeat::Verdict::kStale) return;
      if (reconnectTime().count() <= 0) {
        if (outbox_.idle() && outbox_.control(FrameKind::kHeartbeat)) flush();
        return;
      }
      // Perhaps only this connection is dead, or its bulk connection.
      if (link_->waiting()) bulk_failed_ = true;
      fell_silent_ = true;
      return breakLink("it sent nothing for " + seconds(heartbeat_->silence(now)),
                       heartbeat_->limit());
    }
  }
}

Error Peer::silentReason(Heartbeat::Time now) const {
  return {ErrorCode::kPeerLost,
          describe() + " is lost: it sent nothing for " + seconds(heartbeat_->silence(now)) +
              ", not even a heartbeat (one is due every " +
              seconds(context_.options.heartbeat_interval) +
              "); its process is stopped or starved, or the network to its host is down"};
}

void Peer::lose(Error reason) { go(std::move(reason), true); }

void Peer::leave() {
  switch (state_) {
    case PeerState::kIdle:
      return abandon();
    case PeerState::kDialling:
      if (!outbox_.connectionWanted()) return abandon();
      leaving_ = true;
      return;
    case PeerState::kReconnecting:
      leaving_ = true;
      return;
    case PeerState::kConnected:
      return sayGoodbye();
    case PeerState::kClosing:
    case PeerState::kGone:
      return;
  }
}

void Peer::sayGoodbye() {
  moveTo(PeerState::kClosing);
  outbox_.control(FrameKind::kGoodbye);
  flush();
}

void Peer::closeIfDone() {
  if (peer_ended_ && wrote_all_)
    go({ErrorCode::kShutdown, "this endpoint has said goodbye to " + describe()}, false);
}

void Peer::abandon() {
  go({ErrorCode::kShutdown, "this endpoint was closed before all was sent to " + describe()},
     false);
}

void Peer::go(Error reason, bool tell) {
  if (state_ == PeerState::kGone) return;
  moveTo(PeerState::kGone);
  if (logEnabled(LogLevel::kInfo)) log(LogLevel::kInfo, reason.text());
  reason_ = std::move(reason);
  // Someone who is leaving hears no more of the peer.
  tell_ = tell && !leaving_;
  arena_out_.close();
  arena_in_.reset();
  exported_fds_.clear();
  arena_taken_.clear();
  arena_taking_.clear();
  session_.end();
  context_.session_over(info_.rank, session_.own());
  retire(connector_);
  dropLink();
  // Deferred: the handler is never called from within send() or another of its methods.
  if (outbox_.shut(reason_)) context_.loop.post([self = shared_from_this()] { self->finish(); });
}

void Peer::finish() {
  if (finished_ || outbox_.writing()) return;
  finished_ = true;
  for (const OutFrame& frame : outbox_.takeUnsent()) {
    context_.handler.onSendFailed(info_.rank, frame.header(), reason_);
  }
  loss_told_.store(true);
  if (tell_) context_.handler.onPeerLost({info_.rank, info_.name, reason_});
  context_.on_finished();
}

void Peer::retire(std::shared_ptr<Connector>& dial) {
  if (dial == nullptr) return;
  dial->cancel();
  // Its own function may be the one that led here.
  context_.loop.post([old = std::exchange(dial, nullptr)]() mutable { old.reset(); });
}

// --- frames ---

Error Peer::onFrameHead(const FrameHead& head) {
  exported_fds_.clear();
  if (head.buffer_bytes >= context_.options.bulk.threshold) noteLarge();
  if (head.ack <= acked_) return Error::ok();
  acked_ = head.ack;
  if (outbox_.acked(head.ack)) return Error::ok();
  return {ErrorCode::kProtocol, "it acknowledges message " + std::to_string(head.ack) + ", of " +
                                    std::to_string(outbox_.lastSequence()) + " sent"};
}

void Peer::onFrameTaken(const FrameHead& head) {
  exported_fds_.clear();
  arena_taken_.clear();
  arena_taking_.clear();
  const bool asked = (head.flags & FrameHead::kAckNow) != 0;
  session_.took(head.sequence, asked);
  outbox_.setReceived(head.sequence);
  // Not from here: this is inside the reading of the link, which a broken write would read on. And
  // an answer may carry it first.
  if (asked) context_.loop.post([self = shared_from_this()] { self->ackIfAsked(); });
}

void Peer::ackIfAsked() {
  if (state_ != PeerState::kConnected || !session_.ackAsked(outbox_.lastAckSent())) return;
  if (outbox_.control(FrameKind::kAck)) flush();
}

Disposition Peer::onFrameHeader(std::span<const std::byte> header,
                                std::span<const std::uint64_t> sizes,
                                std::vector<OwnedBuffer>& buffers) {
  try {
    return context_.handler.onHeader(info_.rank, header, sizes, buffers);
  } catch (const std::exception& problem) {
    handler_problem_ = std::string("a message of it could not be taken (") + problem.what() + ")";
    return Disposition::kRefuse;
  }
}

void Peer::onFrame(std::span<const std::byte> header, std::vector<OwnedBuffer> buffers) {
  messages_received_.fetch_add(1, std::memory_order_relaxed);
  context_.handler.onMessage(info_.rank, header, std::move(buffers));
}

std::string Peer::describe() const { return describePeer(info_.name, info_.rank); }

std::string Peer::connectedFor() const { return seconds(EventLoop::Clock::now() - connected_at_); }

}  // namespace weft::transport
