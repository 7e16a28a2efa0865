// Peer: the second connection for large messages, made and used.
#include <string_view>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/system_error.h"
#include "transport/io/address.h"
#include "transport/peer/peer.h"

namespace weft::transport {

// Any thread.
void Peer::noteLarge() {
  if (bulk_wanted_.load(std::memory_order_relaxed) || bulk_wanted_.exchange(true)) return;
  context_.loop.post([self = shared_from_this()] { self->connectBulk(); });
}

bool Peer::mayHaveBulkConnection() const noexcept {
  return (state_ == PeerState::kConnected || state_ == PeerState::kClosing) && bulk_ == nullptr &&
         context_.options.bulk.enabled && !bulk_failed_ &&
         std::string_view(link_->stream().transportName()) == "tcp";
}

// Only the side that dialled the link knows a way to the other for sure.
void Peer::connectBulk() {
  if (!bulk_wanted_.load() || state_ != PeerState::kConnected || !dialled_) return;
  if (bulk_connector_ != nullptr || !mayHaveBulkConnection()) return;
  Result<Address> address = parseAddress(address_);
  if (!address.ok()) return;
  address.value().unix_name.clear();
  const auto patience = context_.options.handshake_timeout;
  bulk_connector_ = std::make_shared<Connector>(
      context_.loop, context_.options, context_.self, info_, address.value(), context_.own_host,
      session_.bulkClaim(), Connector::RetryBackoff{patience, patience});
  bulk_connector_->start(
      [this](Connector::Outcome outcome) { onBulkConnected(std::move(outcome)); });
}

void Peer::onBulkConnected(Connector::Outcome outcome) {
  retire(bulk_connector_);
  if (!outcome.error && outcome.peer.incarnation == incarnation_) {
    return adoptBulkConnection(std::move(outcome.stream));
  }
  bulk_failed_ = true;
  if (logEnabled(LogLevel::kInfo)) {
    const std::string why = outcome.error.code() == ErrorCode::kPeerLost
                                ? "it takes no second one"
                                : "a second could not be made, " + outcome.why;
    log(LogLevel::kInfo, "large messages to " + describe() + " go over one connection: " + why);
  }
  if (bulk_early_) breakBulkConnection("could not be made: " + outcome.why);
}

bool Peer::admitsLane(const Hello& hello, const SessionClaim& theirs) {
  return mayHaveBulkConnection() && !dialled_ && hello.name == info_.name &&
         hello.incarnation == incarnation_ && theirs.link == session_.link() &&
         match(theirs) == Session::Match::kSame;
}

void Peer::adoptBulkConnection(std::shared_ptr<Stream> stream) {
  if (!mayHaveBulkConnection()) return;
  EventLoop* const loop = context_.bulk_loop();
  if (loop == nullptr) {
    bulk_failed_ = true;
    return breakBulkConnection("found no thread to serve it");
  }
  // It speaks on its own thread. What a former one says late is of no interest.
  const auto later = [&loop = context_.loop, link = session_.link(),
                      peer = weak_from_this()](auto what) {
    loop.post([=] {
      const std::shared_ptr<Peer> self = peer.lock();
      if (self != nullptr && self->bulk_ != nullptr && self->session_.link() == link) what(*self);
    });
  };
  BulkConnection::Events events;
  events.on_arrived = [later] { later([](Peer& self) { self.link_->resume(); }); };
  events.on_written = [later] { later([](Peer& self) { self.onWorkAvailable(); }); };
  events.on_broken = [later](int error) {
    later([error](Peer& self) {
      self.breakBulkConnection(error == 0 ? "ended" : "broke (" + errnoName(error) + ")");
    });
  };
  bulk_ = BulkConnection::open(*loop, std::move(stream), bulk_counts_, std::move(events));
  outbox_.setBulkConnection(bulk_, context_.options.bulk.threshold);
  if (bulk_early_) {
    bulk_->read(*bulk_early_);
    bulk_early_.reset();
    static_cast<void>(bulk_->arrived());  // the link may be waiting for it already
  }
}

// The link goes with it: what the bulk connection had is sent again, whole, before there is another
// bulk connection.
void Peer::breakBulkConnection(const std::string& how) {
  const std::string what = "its second connection, for large messages, " + how;
  if (state_ == PeerState::kClosing) return go(brokenReason(what), false);
  if (state_ == PeerState::kConnected) breakLink(what, EventLoop::Clock::now() + reconnectTime());
}

void Peer::dropLane() {
  retire(bulk_connector_);
  bulk_early_.reset();
  if (bulk_ != nullptr) bulk_->cut();
  bulk_.reset();
}

Error Peer::readFromBulk(std::span<const iovec> into) {
  if (bulk_ != nullptr) {
    bulk_->read(into);
  } else if (bulk_connector_ != nullptr) {
    // The peer has admitted it, and its answer is still on the way.
    bulk_early_.emplace(into.begin(), into.end());
  } else {
    return FrameSink::readFromBulk(into);
  }
  return Error::ok();
}

bool Peer::bulkArrived() { return bulk_ != nullptr && bulk_->arrived(); }

}  // namespace weft::transport
