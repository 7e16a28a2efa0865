#include "transport/peer/admission.h"

#include <utility>

#include "transport/base/log.h"
#include "transport/base/peer_name.h"
#include "transport/frame/frame.h"

namespace weft::transport {
namespace {

// Pending connections have proved themselves, so this bounds mistakes, not attacks.
constexpr std::size_t kMaxPending = 1024;

}  // namespace

RefusalCode Admission::admit(const Hello& hello, const SessionClaim& theirs, SessionClaim& ours) {
  if (closed_) return RefusalCode::kStale;
  if (displaced_.contains(hello.incarnation)) return RefusalCode::kDisplaced;
  const std::shared_ptr<Peer> peer = peers_.find(hello.rank);
  if (theirs.bulk != 0) return admitBulk(peer.get(), hello, theirs, ours);
  if (peer != nullptr) {
    if (const RefusalCode code = peer->admit(hello, theirs); code != RefusalCode::kNone)
      return code;
    if (!peer->over()) {
      ours = peer->claim();
      return RefusalCode::kNone;
    }
  }
  // A new session begins. A dialler that wants to continue one is refused: none is known here.
  ours = {context_.sessions.of(hello.rank), theirs.own, 0, theirs.link};
  return theirs.peer == 0 || theirs.peer == ours.own ? RefusalCode::kNone : RefusalCode::kStale;
}

// kDuplicate, after which the dialler tries again, while the link is still pending here.
RefusalCode Admission::admitBulk(Peer* peer, const Hello& hello, const SessionClaim& theirs,
                                 SessionClaim& ours) {
  if (peer == nullptr && pending_.find(hello.rank) != pending_.end())
    return RefusalCode::kDuplicate;
  if (peer == nullptr || !peer->admitsBulk(hello, theirs)) return RefusalCode::kStale;
  ours = peer->claim();
  return RefusalCode::kNone;
}

void Admission::onHandshakeDone(AuthenticatedPeer who) {
  const std::shared_ptr<Peer> peer = peers_.find(who.hello.rank);
  if (who.claim.bulk != 0) {
    if (peer != nullptr) peer->adoptBulk(std::move(who.stream));
    return;
  }
  if (peer != nullptr && peer->mayAdopt())
    return peer->adopt(std::move(who.stream), who.hello, who.claim);
  const bool successor =
      context_.options.reunite && peer != nullptr && peer->over() && peer->name() == who.hello.name;
  if (context_.options.accept_unknown_peers || successor) {
    // Posted, so that the handler hears of the loss of a former life first.
    context_.loop.post([this, who = std::move(who)] { join(who, Dialler::kPeer); });
  } else {
    hold(std::move(who));
  }
}

void Admission::join(AuthenticatedPeer who, Dialler dialler) {
  if (closed_) return;
  const std::shared_ptr<Peer> former = peers_.find(who.hello.rank);
  const bool returns =
      former != nullptr && former->mayReturn() && former->isLife(who.hello.incarnation);
  const PeerInfo info{who.hello.rank, who.hello.name,
                      returns ? peers_.address(who.hello.rank) : ""};
  const auto [peer, is_new] = peers_.join(info);
  if (!is_new && (peer->name() != who.hello.name || !peer->mayAdopt())) return;
  if (is_new && former != nullptr) {
    if (!former->isLife(who.hello.incarnation)) displaced_.insert(former->incarnation());
    on_replaced_(who.hello.rank);
  }
  peer->adopt(std::move(who.stream), who.hello, who.claim, dialler);
  if (!is_new) return;
  returns ? context_.handler.onPeerReturned(info) : context_.handler.onPeerJoined(info);
}

void Admission::hold(AuthenticatedPeer who) {
  const std::int32_t rank = who.hello.rank;
  if (pending_.size() >= kMaxPending && pending_.find(rank) == pending_.end()) return;
  const auto now = EventLoop::Clock::now();
  pending_[rank] = {std::move(who), now + context_.options.connect_timeout, now};
}

void Admission::connectPending(const std::shared_ptr<Peer>& peer) {
  const auto found = pending_.find(peer->rank());
  if (found == pending_.end()) return;
  AuthenticatedPeer who = std::move(found->second.who);
  pending_.erase(found);
  if (who.hello.name != peer->name()) {
    log(LogLevel::kWarning, describePeer(who.hello.name, who.hello.rank) + " connected, but rank " +
                                std::to_string(peer->rank()) + " is '" + peer->name() +
                                "' here; it is cut off");
    return;
  }
  if (peer->mayAdopt()) peer->adopt(std::move(who.stream), who.hello, who.claim);
}

void Admission::tick(EventLoop::Clock::time_point now) {
  for (auto each = pending_.begin(); each != pending_.end();) {
    PendingPeer& pending = each->second;
    bool keep = now < pending.until;
    if (!keep) {
      log(LogLevel::kWarning, describePeer(pending.who.hello.name, pending.who.hello.rank) +
                                  " connected, but was not added here within " +
                                  seconds(context_.options.connect_timeout) + "; it is cut off");
    } else if (now - pending.heartbeat_at >= context_.options.heartbeat_interval) {
      pending.heartbeat_at = now;
      keep = sendHeartbeat(pending);
    }
    each = keep ? std::next(each) : pending_.erase(each);
  }
}

// The other end regards the connection as established and expects signs of life.
bool Admission::sendHeartbeat(const PendingPeer& pending) {
  FrameHead head;
  head.kind = FrameKind::kHeartbeat;
  FrameHeadBytes bytes{};
  encodeFrameHead(head, bytes.data());
  iovec from{bytes.data(), bytes.size()};
  const IoResult result = pending.who.stream->write(std::span(&from, 1), {});
  return result.error == 0 && result.count == bytes.size();
}

void Admission::close() {
  closed_ = true;
  pending_.clear();
}

}  // namespace weft::transport
