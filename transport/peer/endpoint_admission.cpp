// Who may come in, and as whom.
//
// One connection per pair. When both dial at once, the one dialled by the lower rank stays:
// the higher rank drops its own attempt when the other's arrives, the lower refuses the
// other's as a duplicate once the peer may have heard of its own. A refused dialler waits for that
// connection, and tries again until connect_timeout in case it never comes.
//
// A connection that broke is made again by the same rules. A side that has not noticed yet gives up
// its old connection for the new one of the same session; a dialler that speaks of a session which
// is over here is told so (kStale).
#include <array>
#include <cstring>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/peer_name.h"
#include "transport/base/secure_random.h"
#include "transport/frame/frame.h"
#include "transport/peer/endpoint_impl.h"

namespace weft::transport {
namespace {

// PendingPeer connections have proved themselves; the bound is against mistakes, not strangers.
constexpr std::size_t kMaxHeld = 1024;

}  // namespace

std::uint64_t EndpointImpl::sessionOf(std::int32_t rank) {
  std::uint64_t& own = sessions_[rank];
  while (own == 0) {
    std::array<std::uint8_t, sizeof(own)> random{};
    if (Error error = fillRandom(random)) {
      // Not a secret: it only must not be that of another session between the same two lives.
      own = static_cast<std::uint64_t>(EventLoop::Clock::now().time_since_epoch().count());
    } else {
      std::memcpy(&own, random.data(), sizeof(own));
    }
  }
  return own;
}

RefusalCode EndpointImpl::admit(const Hello& hello, const SessionClaim& theirs,
                                SessionClaim& ours) {
  if (closing_) return RefusalCode::kStale;
  const std::shared_ptr<Peer> peer = find(hello.rank);
  if (theirs.bulk != 0) return admitBulkConnection(peer.get(), hello, theirs, ours);
  if (peer != nullptr && peer->state() == PeerState::kGone) {
    // This very life was lost: both sides must agree that it is over. Another life, or
    // one that left in order, is as good as unknown.
    const bool same_life = peer->incarnation() == hello.incarnation && !peer->closedInOrder();
    if (same_life) return RefusalCode::kStale;
  } else if (peer != nullptr) {
    if (peer->name() != hello.name) return RefusalCode::kIdentity;
    if (const RefusalCode code = admitTo(*peer, hello, theirs); code != RefusalCode::kNone)
      return code;
    if (peer->state() != PeerState::kGone) {
      ours = peer->claim();
      return RefusalCode::kNone;
    }
  }
  // A session begins; one that is to go on is not known here.
  ours = {sessionOf(hello.rank), theirs.own, 0, theirs.link};
  return theirs.peer == 0 || theirs.peer == ours.own ? RefusalCode::kNone : RefusalCode::kStale;
}

// A second connection for large messages. One whose link waits to be named here may try again.
RefusalCode EndpointImpl::admitBulkConnection(Peer* peer, const Hello& hello,
                                              const SessionClaim& theirs, SessionClaim& ours) {
  if (peer == nullptr && held_.find(hello.rank) != held_.end()) return RefusalCode::kDuplicate;
  if (peer == nullptr || !peer->admitsLane(hello, theirs)) return RefusalCode::kStale;
  ours = peer->claim();
  return RefusalCode::kNone;
}

// The peer is known. With kNone it is ready for adopt(), or gone because the dialler is not it.
RefusalCode EndpointImpl::admitTo(Peer& peer, const Hello& hello, const SessionClaim& theirs) {
  if (peer.state() == PeerState::kClosing) return RefusalCode::kDuplicate;
  const bool met =
      peer.state() == PeerState::kConnected || peer.state() == PeerState::kReconnecting;
  if (met && peer.incarnation() != hello.incarnation) {
    peer.lose(peer.startedAgain());
    return RefusalCode::kNone;
  }
  switch (peer.match(theirs)) {
    case Session::Match::kUnknown:
      return RefusalCode::kStale;
    case Session::Match::kAnother:
      peer.lose(peer.begunAnew());
      return RefusalCode::kNone;
    case Session::Match::kSame:
      break;
  }
  if (peer.state() == PeerState::kConnected) {
    if (peer.isLate(theirs)) return RefusalCode::kDuplicate;
    return peer.yieldLink() ? RefusalCode::kNone : RefusalCode::kStale;
  }
  return peer.handshaking() && self_.rank < hello.rank ? RefusalCode::kDuplicate
                                                       : RefusalCode::kNone;
}

void EndpointImpl::admitted(AuthenticatedPeer who) {
  const std::shared_ptr<Peer> peer = find(who.hello.rank);
  if (who.claim.bulk != 0) {
    if (peer != nullptr) peer->adoptBulkConnection(std::move(who.stream));
    return;
  }
  if (peer != nullptr && peer->mayAdopt()) {
    return peer->adopt(std::move(who.stream), who.hello, who.claim);
  }
  const bool successor = options_.accept_successors && peer != nullptr &&
                         peer->state() == PeerState::kGone && peer->name() == who.hello.name;
  if (options_.accept_unknown_peers || successor) {
    // In order behind the loss of a former life, if there was one.
    loop_->post([this, who = std::move(who)] { join(who); });
  } else {
    hold(std::move(who));
  }
}

void EndpointImpl::join(AuthenticatedPeer who) {
  if (closing_) return;
  const Hello& hello = who.hello;
  std::shared_ptr<Peer> joined;
  std::shared_ptr<Peer> known;
  {
    const std::lock_guard<std::shared_mutex> lock(peers_mutex_);
    Entry& entry = peers_[hello.rank];
    if (entry.peer == nullptr || entry.peer->lossTold()) {
      if (entry.peer != nullptr && !entry.peer->finished()) leaving_.push_back(entry.peer);
      entry.address.clear();
      entry.peer = joined = Peer::make(context_, {hello.rank, hello.name, ""});
    } else {
      known = entry.peer;  // addPeer() was quicker
    }
  }
  if (known != nullptr) {
    if (known->name() == hello.name && known->mayAdopt()) {
      known->adopt(std::move(who.stream), hello, who.claim);
    }
    return;
  }
  joined->adopt(std::move(who.stream), hello, who.claim);
  handler_.onPeerJoined({hello.rank, hello.name, ""});
}

void EndpointImpl::hold(AuthenticatedPeer who) {
  const std::int32_t rank = who.hello.rank;
  if (held_.size() >= kMaxHeld && held_.find(rank) == held_.end()) return;
  const auto now = EventLoop::Clock::now();
  held_[rank] = {std::move(who), now + options_.connect_timeout, now};
}

void EndpointImpl::claimHeld(const std::shared_ptr<Peer>& peer) {
  const auto found = held_.find(peer->rank());
  if (found == held_.end()) return;
  AuthenticatedPeer who = std::move(found->second.who);
  held_.erase(found);
  if (who.hello.name != peer->name()) {
    log(LogLevel::kWarning, describePeer(who.hello.name, who.hello.rank) + " connected, but rank " +
                                std::to_string(peer->rank()) + " is '" + peer->name() +
                                "' here; cut off");
    return;
  }
  if (peer->mayAdopt()) peer->adopt(std::move(who.stream), who.hello, who.claim);
}

// Its other end takes the connection for good and expects signs of life.
void EndpointImpl::tickHeld(EventLoop::Clock::time_point now) {
  for (auto each = held_.begin(); each != held_.end();) {
    PendingPeer& held = each->second;
    bool keep = now < held.until;
    if (!keep) {
      log(LogLevel::kWarning, describePeer(held.who.hello.name, held.who.hello.rank) +
                                  " connected, but was not made known here within " +
                                  seconds(options_.connect_timeout) + "; cut off");
    } else if (now - held.heartbeat_at >= options_.heartbeat_interval) {
      held.heartbeat_at = now;
      FrameHead head;
      head.kind = FrameKind::kHeartbeat;
      FrameHeadBytes bytes{};
      encodeFrameHead(head, bytes.data());
      iovec from{bytes.data(), bytes.size()};
      const IoResult result = held.who.stream->write(std::span(&from, 1));
      keep = result.error == 0 && result.count == bytes.size();
    }
    each = keep ? std::next(each) : held_.erase(each);
  }
}

}  // namespace weft::transport
