// Peer: the second connection for large messages, made and used.
#include <string_view>
#include <utility>

#include "transport/io/address.h"
#include "transport/base/log.h"
#include "transport/peer/peer.h"
#include "transport/base/system_error.h"

namespace weft::transport {

// Any thread.
void Peer::noteLarge() {
  if (lane_wanted_.load(std::memory_order_relaxed) || lane_wanted_.exchange(true)) return;
  context_.loop.post([self = shared_from_this()] { self->dialLane(); });
}

bool Peer::mayHaveLane() const noexcept {
  return (state_ == PeerState::kConnected || state_ == PeerState::kClosing) && lane_ == nullptr &&
         context_.options.lanes.enabled && !lane_failed_ &&
         std::string_view(link_->stream().transportName()) == "tcp";
}

// Only the side that dialled the link knows a way to the other for sure.
void Peer::dialLane() {
  if (!lane_wanted_.load() || state_ != PeerState::kConnected || !dialled_) return;
  if (lane_dial_ != nullptr || !mayHaveLane()) return;
  Result<Address> address = parseAddress(address_);
  if (!address.ok()) return;
  address.value().unix_name.clear();
  const auto patience = context_.options.handshake_timeout;
  lane_dial_ = std::make_shared<Dial>(context_.loop, context_.options, context_.self, info_,
                                      address.value(), context_.own_host, session_.laneClaim(),
                                      Dial::Patience{patience, patience});
  lane_dial_->start([this](Dial::Outcome outcome) { onLaneDialled(std::move(outcome)); });
}

void Peer::onLaneDialled(Dial::Outcome outcome) {
  retire(lane_dial_);
  if (!outcome.error && outcome.peer.incarnation == incarnation_) {
    return adoptLane(std::move(outcome.stream));
  }
  lane_failed_ = true;
  if (logEnabled(LogLevel::kInfo)) {
    const std::string why = outcome.error.code() == ErrorCode::kPeerLost
                                ? "it takes no second one"
                                : "a second could not be made, " + outcome.why;
    log(LogLevel::kInfo, "large messages to " + describe() + " go over one connection: " + why);
  }
  if (lane_early_) breakLane("could not be made: " + outcome.why);
}

bool Peer::admitsLane(const Hello& hello, const SessionClaim& theirs) {
  return mayHaveLane() && !dialled_ && hello.name == info_.name &&
         hello.incarnation == incarnation_ && theirs.link == session_.link() &&
         match(theirs) == Session::Match::kSame;
}

void Peer::adoptLane(std::shared_ptr<Stream> stream) {
  if (!mayHaveLane()) return;
  EventLoop* const lanes = context_.lane_loop();
  if (lanes == nullptr) {
    lane_failed_ = true;
    return breakLane("found no thread to serve it");
  }
  // It speaks on its own thread. What a former one says late is of no interest.
  const auto later = [&loop = context_.loop, link = session_.link(),
                      peer = weak_from_this()](auto what) {
    loop.post([=] {
      const std::shared_ptr<Peer> self = peer.lock();
      if (self != nullptr && self->lane_ != nullptr && self->session_.link() == link) what(*self);
    });
  };
  Lane::Events events;
  events.on_arrived = [later] { later([](Peer& self) { self.link_->resume(); }); };
  events.on_written = [later] { later([](Peer& self) { self.attention(); }); };
  events.on_broken = [later](int error) {
    later([error](Peer& self) {
      self.breakLane(error == 0 ? "ended" : "broke (" + errnoName(error) + ")");
    });
  };
  lane_ = Lane::open(*lanes, std::move(stream), lane_counts_, std::move(events));
  outbox_.setLane(lane_, context_.options.lanes.threshold);
  if (lane_early_) {
    lane_->read(*lane_early_);
    lane_early_.reset();
    static_cast<void>(lane_->arrived());  // the link may be waiting for it already
  }
}

// The link goes with it: what the lane had is sent again, whole, before there is another lane.
void Peer::breakLane(const std::string& how) {
  const std::string what = "its second connection, for large messages, " + how;
  if (state_ == PeerState::kClosing) return go(brokenReason(what), false);
  if (state_ == PeerState::kConnected) breakLink(what, EventLoop::Clock::now() + reconnectTime());
}

void Peer::dropLane() {
  retire(lane_dial_);
  lane_early_.reset();
  if (lane_ != nullptr) lane_->cut();
  lane_.reset();
}

Error Peer::readFromLane(std::span<const iovec> into) {
  if (lane_ != nullptr) {
    lane_->read(into);
  } else if (lane_dial_ != nullptr) {
    // The peer has admitted it, and its answer is still on the way.
    lane_early_.emplace(into.begin(), into.end());
  } else {
    return FrameSink::readFromLane(into);
  }
  return Error::ok();
}

bool Peer::laneArrived() { return lane_ != nullptr && lane_->arrived(); }

}  // namespace weft::transport
