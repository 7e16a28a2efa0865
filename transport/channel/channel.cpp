#include "transport/channel/channel.h"

#include <cerrno>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/peer_name.h"
#include "transport/base/thrown.h"

namespace weft::transport {
namespace {

// How long writing pauses when too many descriptors are in flight.
constexpr std::chrono::milliseconds kBackpressurePause{5};
// How often to look whether the bulk connection has written its last half, before closing.
constexpr std::chrono::milliseconds kBulkPause{1};

}  // namespace

Channel::Channel(EndpointContext& context, const PeerInfo& peer, Session& session,
                 ChannelOwner& owner)
    : context_(context),
      peer_(peer),
      session_(session),
      owner_(owner),
      outbox_(
          context.options.limits, session, describe(), [this] { postWork(); },
          context.options.reconnect_timeout.count() > 0),
      shared_memory_(context.loop, context.options.arena, outbox_, describe(),
                     [this] { postWork(); }),
      bulk_(
          context, peer, session, outbox_,
          {[this] { postWork(); }, [this] { link_->resume(); },
           [this](const std::string& how) {
             owner_.onLinkEnd(
                 {LinkEnd::Kind::kBroken, "its second connection, for large messages, " + how, {}});
           }}),
      inbox_(context.handler, peer.rank, session, outbox_, shared_memory_, bulk_,
             [this] { postWork(); }) {}

std::string Channel::describe() const { return describePeer(peer_.name, peer_.rank); }

// --- any thread ---

Error Channel::send(Message message, std::chrono::milliseconds wait) {
  Error error;
  const auto thrown = thrownBy([&] { error = sendOne(std::move(message), wait); });
  if (!thrown) return error;
  return {ErrorCode::kSystem, resourceExhausted("cannot send to " + describe() +
                                                ": it could not be queued here (" + *thrown + ")")};
}

Error Channel::sendOne(Message message, std::chrono::milliseconds wait) {
  // The loop thread serves every peer: it neither copies for one nor waits for room.
  const bool in_loop = context_.loop.inLoop();
  ArenaPlacement placement = in_loop ? ArenaPlacement() : shared_memory_.place(message);
  Result<OutFrame> frame =
      OutFrame::message(std::move(message), context_.options.limits, std::move(placement));
  if (!frame.ok()) {
    return {frame.error().code(), "cannot send to " + describe() + ": " + frame.error().text()};
  }
  bulk_.noteMessage(frame.value().carried());
  if (!in_loop) return outbox_.send(std::move(frame).value(), wait);
  Error error = outbox_.send(std::move(frame).value(), std::nullopt);
  if (error.code() == ErrorCode::kLimitExceeded) {
    context_.loop.post([owner = owner_.shared_from_this(), error] {
      owner->onLinkEnd({LinkEnd::Kind::kProtocol, {}, error});
    });
  }
  return error;
}

void Channel::fillIn(PeerStats& stats) const {
  const OutboxStats out = outbox_.stats();
  const ArenaStats arena = shared_memory_.sent();
  stats.transport = out.transport;
  stats.bulk_bytes_sent = bulk_.counts().sent.load(std::memory_order_relaxed);
  stats.bytes_sent = out.bytes_sent + arena.bytes_sent + stats.bulk_bytes_sent;
  stats.bytes_received = bytes_received_.load(std::memory_order_relaxed) +
                         shared_memory_.bytesReceived() +
                         bulk_.counts().received.load(std::memory_order_relaxed);
  stats.messages_sent = out.messages_sent;
  stats.messages_received = inbox_.messages();
  stats.queued_bytes = out.queued_bytes + out.unacked_bytes;
  stats.arena_bytes_sent = arena.bytes_sent;
  stats.arena_fallbacks = arena.fallbacks;
}

void Channel::postWork() noexcept {
  static_cast<void>(thrownBy([&] {
    context_.loop.post([owner = owner_.shared_from_this()] { owner->onWorkAvailable(); });
  }));
}

// --- links, one after the other ---

void Channel::attach(std::shared_ptr<Stream> stream, std::uint64_t incarnation,
                     std::uint64_t received, Dialler dialler) {
  const auto now = EventLoop::Clock::now();
  heartbeat_.emplace(now, context_.options.heartbeat_interval, context_.options.peer_timeout);
  shared_memory_.attach(*stream);
  bulk_.attach(*stream, dialler, incarnation);
  outbox_.attach(stream, received);
  link_ = std::make_shared<Link>(
      context_.loop, std::move(stream), describe(), context_.options.limits,
      FrameHandlers{inbox_, &shared_memory_, &bulk_}, session_.received(), bytes_received_,
      Link::Events{[this](const LinkEnd& end) { owner_.onLinkEnd(end); }, [this] { flush(); }});
}

void Channel::detach() {
  dropLink();
  outbox_.detach();
}

void Channel::close(const Error& reason) {
  shared_memory_.close();
  dropLink();
  outbox_.shut(reason);
}

void Channel::dropLink() {
  if (link_ == nullptr) return;
  link_->stream().breakOff();  // also ends a caller's write
  link_->abandon();
  shared_memory_.detach();
  bulk_.detach();
  // Destroyed later, because one of its own functions may be running; by tidy() if that cannot be
  // posted.
  retired_ = std::move(link_);
  static_cast<void>(thrownBy([&] {
    context_.loop.post([this, owner = owner_.shared_from_this()] { retired_.reset(); });
  }));
}

// --- writing ---

void Channel::work() {
  if (session_.ackAsked()) outbox_.control(FrameKind::kAck);
  shared_memory_.offer();
  bulk_.connect(owner_.weak_from_this());
  flush();
}

void Channel::flush() {
  if (link_ == nullptr) return;
  int error = 0;
  switch (outbox_.flush(error)) {
    case Outbox::Flushed::kBusy:
      return;
    case Outbox::Flushed::kBlocked:
      return link_->wantWrite(true);
    case Outbox::Flushed::kBackpressured:
      link_->wantWrite(false);
      return link_->writeLater(kBackpressurePause);
    case Outbox::Flushed::kDrained:
      link_->wantWrite(false);
      return owner_.onDrained();
    case Outbox::Flushed::kBroken: {
      // The peer may have said goodbye before. What it sent says more than the errno.
      const std::shared_ptr<Link> broke = link_;
      broke->drain();
      if (link_ == broke) owner_.onLinkEnd(broke->brokenBy(error));
      return;
    }
  }
}

void Channel::sayGoodbye() {
  outbox_.control(FrameKind::kGoodbye);
  flush();
}

bool Channel::finishWriting() {
  if (bulk_.written()) {
    link_->stream().finishWriting();
    return true;
  }
  link_->writeLater(kBulkPause);
  return false;
}

// --- reading ---

void Channel::drain() {
  const std::shared_ptr<Link> link = link_;  // the owner may drop it
  link->drain();
}

// --- time ---

void Channel::tick(Time now, std::chrono::nanoseconds late) {
  shared_memory_.tick(now);
  if (session_.ackOverdue() && outbox_.control(FrameKind::kAck)) flush();
  if (link_ != nullptr) beat(now, late);
}

void Channel::beat(Time now, std::chrono::nanoseconds late) {
  using Verdict = Heartbeat::Verdict;
  const auto look = [&](std::chrono::nanoseconds lost) {
    return heartbeat_->tick(now, lost, outbox_.stats().bytes_sent,
                            link_->stream().bytesCame() + bulk_.bytesCame());
  };
  // So that the next look counts what comes slowly.
  if (link_->waiting()) bulk_.readNow();
  Verdict verdict = look(late);
  if (verdict == Verdict::kSend) return sendHeartbeat();
  if (verdict == Verdict::kFine) return;
  // The peer may have spoken while this loop was busy elsewhere.
  const std::shared_ptr<Link> link = link_;
  link->readSome();
  if (link_ != link) return;
  verdict = look(std::chrono::nanoseconds(0));
  if (verdict == Verdict::kSilent) return owner_.onLinkEnd({LinkEnd::Kind::kSilent, {}, {}});
  if (verdict != Verdict::kQuiet) return;
  if (context_.options.reconnect_timeout.count() <= 0) return sendHeartbeat();
  // Perhaps only this connection or its bulk connection is dead.
  if (link_->waiting()) bulk_.disable();
  owner_.onLinkEnd(
      {LinkEnd::Kind::kQuiet, "it sent nothing for " + seconds(heartbeat_->silence(now)), {}});
}

void Channel::sendHeartbeat() {
  // Queued bytes are a sign of life, too.
  if (outbox_.stats().queued_bytes == 0 && outbox_.control(FrameKind::kHeartbeat)) flush();
}

}  // namespace weft::transport
