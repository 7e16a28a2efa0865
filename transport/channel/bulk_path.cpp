#include "transport/channel/bulk_path.h"

#include <string_view>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/os/system_error.h"
#include "transport/base/peer_name.h"
#include "transport/io/address.h"

namespace weft::transport {

BulkPath::BulkPath(const EndpointContext& context, const PeerInfo& peer, const Session& session,
                   Outbox& outbox, Events events)
    : context_(context),
      peer_(peer),
      session_(session),
      outbox_(outbox),
      events_(std::move(events)) {}

void BulkPath::noteLarge() {
  if (wanted_.load(std::memory_order_relaxed) || wanted_.exchange(true)) return;
  events_.on_wanted();
}

void BulkPath::attach(const Stream& link, Dialler dialler, std::uint64_t incarnation) {
  over_tcp_ = std::string_view(link.transportName()) == "tcp";
  dialler_ = dialler;
  incarnation_ = incarnation;
  if (attempts_ == Attempts::kWithNextLink) attempts_ = Attempts::kAllowed;
}

void BulkPath::detach() {
  over_tcp_ = false;
  connector_.reset();
  early_.reset();
  if (bulk_ != nullptr) bulk_->cut();
  bulk_.reset();
}

bool BulkPath::mayHave() const noexcept {
  return over_tcp_ && bulk_ == nullptr && context_.options.bulk.enabled &&
         attempts_ == Attempts::kAllowed;
}

void BulkPath::connect(const std::weak_ptr<void>& owner) {
  if (!wanted_.load() || dialler_ != Dialler::kSelf || connector_ != nullptr || !mayHave()) return;
  Result<Address> parsed = parseAddress(peer_.address);
  if (!parsed.ok()) return;
  parsed.value().unix_name.clear();
  const auto timeout = context_.options.handshake_timeout;
  connector_ = std::make_unique<Connector>(context_, peer_, parsed.value(), session_.bulkClaim(),
                                           Connector::RetryBackoff{timeout, timeout});
  connector_->start(
      [this, owner](Connector::Outcome outcome) { onConnected(std::move(outcome), owner); });
}

void BulkPath::onConnected(Connector::Outcome outcome, const std::weak_ptr<void>& owner) {
  connector_.reset();
  if (!outcome.error && outcome.peer.incarnation == incarnation_)
    return adopt(std::move(outcome.stream), owner);
  cannotBeMade(outcome.error.code() == ErrorCode::kPeerLost ? "it takes no bulk connection"
                                                            : outcome.error.text());
}

void BulkPath::cannotBeMade(const std::string& why) {
  // Most often the peer has lost the link, and this side has not heard of it.
  attempts_ = early_ ? Attempts::kOver : Attempts::kWithNextLink;
  if (logEnabled(LogLevel::kInfo)) {
    log(LogLevel::kInfo, "large messages to " + describePeer(peer_.name, peer_.rank) +
                             " go over one connection: " + why);
  }
  if (early_) events_.on_broken("could not be made: " + why);
}

bool BulkPath::admits(const Hello& hello, const SessionClaim& theirs) const {
  return mayHave() && dialler_ == Dialler::kPeer && hello.name == peer_.name &&
         hello.incarnation == incarnation_ && theirs.link == session_.linkNumber() &&
         session_.match(theirs) == Session::Match::kSame;
}

void BulkPath::adopt(std::shared_ptr<Stream> stream, const std::weak_ptr<void>& owner) {
  if (!mayHave()) return;
  if (context_.bulk_loop == nullptr) {
    auto made = EventLoop::create("weft-bulk", EventLoop::Idle::kSleep);
    if (!made.ok()) {
      log(LogLevel::kWarning, made.error().text());
      attempts_ = Attempts::kOver;
      return events_.on_broken("found no thread to serve it");
    }
    context_.bulk_loop = std::move(made).value();
  }
  // It speaks on its own thread. What one of a former link says late is of no interest.
  const auto later = [this, &own = context_.loop, link = session_.linkNumber(), owner](auto what) {
    own.post([this, link, owner, what] {
      const std::shared_ptr<void> alive = owner.lock();
      if (alive != nullptr && bulk_ != nullptr && session_.linkNumber() == link) what(events_);
    });
  };
  BulkConnection::Events events;
  events.on_arrived = [later] { later([](const Events& to) { to.on_arrived(); }); };
  events.on_broken = [later](int error) {
    later([error](const Events& to) {
      to.on_broken(error == 0 ? "ended" : "broke (" + errnoName(error) + ")");
    });
  };
  bulk_ = BulkConnection::open(*context_.bulk_loop, std::move(stream), counts_, std::move(events));
  outbox_.setBulkConnection(bulk_, context_.options.bulk.threshold);
  if (early_) {
    bulk_->read(early_->into, std::move(early_->arrivals));
    early_.reset();
    static_cast<void>(bulk_->arrived());  // the link may be waiting for it already
  }
}

Error BulkPath::readFromBulk(std::span<const iovec> into, std::shared_ptr<Arrivals> arrivals) {
  if (bulk_ != nullptr) {
    bulk_->read(into, std::move(arrivals));
  } else if (connector_ != nullptr) {
    // The peer has admitted it, and its answer is still on the way.
    early_.emplace(Early{{into.begin(), into.end()}, std::move(arrivals)});
  } else if (attempts_ != Attempts::kAllowed) {
    // The peer has taken the one that could not be made here. With a new link it sends again.
    return {ErrorCode::kSystem, "it uses a bulk connection that could not be made here"};
  } else {
    return protocolError("a split message without a bulk connection");
  }
  return Error::ok();
}

}  // namespace weft::transport
