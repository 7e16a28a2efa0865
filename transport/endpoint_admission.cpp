// Who may come in, and as whom.
//
// One connection per pair. When both dial at once, the one dialled by the lower rank stays:
// the higher rank drops its own attempt when the other's arrives, the lower refuses the
// other's as a duplicate once the peer may have heard of its own. A refused dialler waits for that
// connection, and tries again until connect_timeout in case it never comes.
#include <utility>

#include "transport/endpoint_impl.h"
#include "transport/frame.h"
#include "transport/log.h"
#include "transport/peer_name.h"

namespace weft::transport {
namespace {

// Held connections have proved themselves; the bound is against mistakes, not strangers.
constexpr std::size_t kMaxHeld = 1024;

}  // namespace

RefusalCode EndpointImpl::admit(const Hello& hello) {
  if (closing_) return RefusalCode::kStale;
  const std::shared_ptr<Peer> peer = find(hello.rank);
  if (peer == nullptr) return RefusalCode::kNone;
  if (peer->state() == PeerState::kGone) {
    // This very life was lost: both sides must agree that it is over. Another life, or
    // one that left in order, is as good as unknown.
    const bool same_life = peer->incarnation() == hello.incarnation && !peer->closedInOrder();
    return same_life ? RefusalCode::kStale : RefusalCode::kNone;
  }
  if (peer->name() != hello.name) return RefusalCode::kIdentity;
  switch (peer->state()) {
    case PeerState::kIdle:
      return RefusalCode::kNone;
    case PeerState::kDialling:
      return peer->handshaking() && self_.rank < hello.rank ? RefusalCode::kDuplicate
                                                            : RefusalCode::kNone;
    case PeerState::kConnected:
      return peer->incarnation() == hello.incarnation ? RefusalCode::kDuplicate
                                                      : RefusalCode::kNone;
    case PeerState::kClosing:
    case PeerState::kGone:
      break;
  }
  return RefusalCode::kDuplicate;
}

void EndpointImpl::admitted(const Hello& hello, std::shared_ptr<Stream> stream) {
  if (const std::shared_ptr<Peer> peer = find(hello.rank); peer != nullptr) {
    if (peer->state() == PeerState::kIdle || peer->state() == PeerState::kDialling) {
      return peer->adopt(std::move(stream), hello);
    }
    if (peer->state() == PeerState::kConnected) {
      peer->lose({ErrorCode::kPeerLost,
                  describePeer(peer->name(), peer->rank()) +
                      " is lost: it was started again. What refers to its former life fails"});
    }
  }
  if (options_.accept_unknown_peers) {
    // In order behind the loss of a former life, if there was one.
    loop_->post([this, hello, stream = std::move(stream)] { join(hello, stream); });
  } else {
    hold(hello, std::move(stream));
  }
}

void EndpointImpl::join(const Hello& hello, std::shared_ptr<Stream> stream) {
  if (closing_) return;
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
    if (known->name() == hello.name &&
        (known->state() == PeerState::kIdle || known->state() == PeerState::kDialling)) {
      known->adopt(std::move(stream), hello);
    }
    return;
  }
  joined->adopt(std::move(stream), hello);
  handler_.onPeerJoined({hello.rank, hello.name, ""});
}

void EndpointImpl::hold(const Hello& hello, std::shared_ptr<Stream> stream) {
  if (held_.size() >= kMaxHeld && held_.find(hello.rank) == held_.end()) return;
  const auto now = EventLoop::Clock::now();
  held_[hello.rank] = {hello, std::move(stream), now + options_.connect_timeout, now};
}

void EndpointImpl::claimHeld(const std::shared_ptr<Peer>& peer) {
  const auto found = held_.find(peer->rank());
  if (found == held_.end()) return;
  Held held = std::move(found->second);
  held_.erase(found);
  if (held.hello.name != peer->name()) {
    log(LogLevel::kWarning, describePeer(held.hello.name, held.hello.rank) +
                                " connected, but rank " + std::to_string(peer->rank()) + " is '" +
                                peer->name() + "' here; cut off");
    return;
  }
  if (peer->state() == PeerState::kIdle || peer->state() == PeerState::kDialling) {
    peer->adopt(std::move(held.stream), held.hello);
  }
}

// Its other end takes the connection for good and expects signs of life.
void EndpointImpl::tickHeld(EventLoop::Clock::time_point now) {
  for (auto each = held_.begin(); each != held_.end();) {
    Held& held = each->second;
    bool keep = now < held.until;
    if (!keep) {
      log(LogLevel::kWarning, describePeer(held.hello.name, held.hello.rank) +
                                  " connected, but was not made known here within " +
                                  seconds(options_.connect_timeout) + "; cut off");
    } else if (now - held.heartbeat_at >= options_.heartbeat_interval) {
      held.heartbeat_at = now;
      FrameHead head;
      head.kind = FrameKind::kHeartbeat;
      FrameHeadBytes bytes{};
      encodeFrameHead(head, bytes.data());
      iovec from{bytes.data(), bytes.size()};
      const IoResult result = held.stream->write(std::span(&from, 1));
      keep = result.error == 0 && result.count == bytes.size();
    }
    each = keep ? std::next(each) : held_.erase(each);
  }
}

}  // namespace weft::transport
