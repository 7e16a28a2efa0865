#include "transport/peer/admission.h"

#include <utility>

#include "transport/base/log.h"
#include "transport/base/peer_name.h"
#include "transport/frame/frame.h"
#include "transport/peer/peer_errors.h"

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
    if (const RefusalCode code = admitKnown(*peer, hello, theirs); code != RefusalCode::kNone)
      return code;
    if (!peer->life().over()) {
      ours = peer->session().claim();
      return RefusalCode::kNone;
    }
  }
  // A new session begins. A dialler that wants to continue one is refused: none is known here.
  ours = {context_.sessions.of(hello.rank), theirs.own, 0, theirs.link};
  return theirs.peer == 0 || theirs.peer == ours.own ? RefusalCode::kNone : RefusalCode::kStale;
}

RefusalCode Admission::admitKnown(Peer& peer, const Hello& hello, const SessionClaim& theirs) {
  PeerSession& session = peer.session();
  if (peer.life().over()) {
    // A life that was lost here stays out, so that both sides agree that it is over. Another life,
    // or one that left in order, is treated as unknown.
    const bool same_life =
        session.met() && session.incarnation() == hello.incarnation && !peer.closedInOrder();
    // Where the two may meet again, admit() tells an old session from a new one.
    return same_life && !peer.mayReturn() ? RefusalCode::kStale : RefusalCode::kNone;
  }
  if (peer.name() != hello.name) return RefusalCode::kIdentity;
  if (peer.life().saidGoodbye()) return RefusalCode::kDuplicate;
  if (session.isAnother(hello.incarnation)) return mayReplace(peer, hello, theirs);
  switch (session.match(theirs)) {
    case Session::Match::kUnknown:
      return RefusalCode::kStale;
    case Session::Match::kAnother:
      peer.fail(peer_errors::lostSession(describePeer(peer.name(), peer.rank())));
      return RefusalCode::kNone;
    case Session::Match::kSame:
      break;
  }
  if (peer.life().now() == PeerState::kConnected) {
    if (session.isLate(theirs)) return RefusalCode::kDuplicate;
    return peer.yieldLink() ? RefusalCode::kNone : RefusalCode::kStale;
  }
  // The peer may have answered this side's dial already.
  return session.handshaking() && context_.self.rank < hello.rank ? RefusalCode::kDuplicate
                                                                  : RefusalCode::kNone;
}

// A process that holds the key may claim any rank. This life keeps its rank as long as it is heard
// from.
RefusalCode Admission::mayReplace(Peer& peer, const Hello& hello, const SessionClaim& theirs) {
  if (theirs.peer != 0) return RefusalCode::kDisplaced;  // it was here before this life
  peer.readRest();                                       // the link's end may have come
  if (peer.life().over()) return RefusalCode::kNone;
  const std::string who = describePeer(peer.name(), peer.rank());
  if (peer.life().now() == PeerState::kConnected &&
      peer.silence() < 3 * context_.options.heartbeat_interval) {
    if (std::exchange(warned_of_[peer.rank()], hello.incarnation) != hello.incarnation) {
      log(LogLevel::kWarning, "another process says that it is " + who +
                                  ", which is alive; it is refused as long as that one is");
    }
    return RefusalCode::kDuplicate;
  }
  peer.session().setReplaced();
  peer.fail(peer_errors::restarted(who));
  return RefusalCode::kNone;
}

// kDuplicate, after which the dialler tries again, while the link is still pending here.
RefusalCode Admission::admitBulk(Peer* peer, const Hello& hello, const SessionClaim& theirs,
                                 SessionClaim& ours) {
  if (peer == nullptr && pending_.find(hello.rank) != pending_.end())
    return RefusalCode::kDuplicate;
  if (peer == nullptr || !peer->bulk().admits(hello, theirs)) return RefusalCode::kStale;
  ours = peer->session().claim();
  return RefusalCode::kNone;
}

void Admission::onHandshakeDone(AuthenticatedPeer who) {
  const std::shared_ptr<Peer> peer = peers_.find(who.hello.rank);
  if (who.claim.bulk != 0) {
    if (peer != nullptr) peer->bulk().adopt(std::move(who.stream), peer);
    return;
  }
  if (peer != nullptr && peer->life().mayAdopt())
    return peer->adopt(std::move(who.stream), who.hello, who.claim);
  const bool successor = context_.options.reunite && peer != nullptr && peer->life().over() &&
                         peer->name() == who.hello.name;
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
  const bool returns = former != nullptr && former->mayReturn() &&
                       !former->session().isAnother(who.hello.incarnation);
  const PeerInfo info{who.hello.rank, who.hello.name,
                      returns ? peers_.address(who.hello.rank) : ""};
  const auto [peer, is_new] = peers_.join(info);
  if (!is_new && (peer->name() != who.hello.name || !peer->life().mayAdopt())) return;
  if (is_new && former != nullptr) {
    if (former->session().isAnother(who.hello.incarnation))
      displaced_.insert(former->session().incarnation());
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
  if (peer->life().mayAdopt()) peer->adopt(std::move(who.stream), who.hello, who.claim);
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
