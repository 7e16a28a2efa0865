#include "transport/peer/reunion.h"

#include <algorithm>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/peer_name.h"
#include "transport/base/thrown.h"
#include "transport/io/address.h"

namespace weft::transport {
namespace {

constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{3000};
// How much later the higher rank begins, so that the two rarely make two connections at once.
constexpr std::chrono::milliseconds kSecondAfter{500};

}  // namespace

void Reunion::begin(std::int32_t rank) {
  if (stopped_ || !context_.options.reunite) return;
  const std::shared_ptr<Peer> lost = peers_.find(rank);
  if (lost == nullptr || !lost->life().finished() || !lost->mayReturn()) return;
  Attempt& attempt = attempts_[rank];
  attempt = {};
  attempt.lost = lost;
  if (context_.self.rank > rank) attempt.pause = kSecondAfter;
  attempt.timer = std::make_unique<Timer>(context_.loop, [this, rank] {
    const auto thrown = thrownBy([&] { dial(rank); });
    if (!thrown || attempts_.find(rank) == attempts_.end()) return;
    attempts_.at(rank).connector.reset();
    dialLater(rank);
  });
  dialLater(rank);
}

void Reunion::stop() {
  stopped_ = true;
  attempts_.clear();
}

void Reunion::dialLater(std::int32_t rank) {
  Attempt& attempt = attempts_.at(rank);
  attempt.pause = std::clamp(2 * attempt.pause, kFirstPause, kLongestPause);
  attempt.timer->start(attempt.pause);
}

void Reunion::dial(std::int32_t rank) {
  Attempt& attempt = attempts_.at(rank);
  const Result<Address> address = parseAddress(peers_.address(rank));
  if (peers_.find(rank) != attempt.lost || !address.ok()) {
    attempts_.erase(rank);
    return;
  }
  const SessionClaim claim{context_.sessions.of(rank), 0, 0, 1, 0};
  const EndpointOptions& options = context_.options;
  attempt.connector = std::make_unique<Connector>(
      context_, PeerInfo{rank, attempt.lost->name(), ""}, address.value(), claim,
      Connector::RetryBackoff{options.connect_timeout, options.handshake_timeout});
  attempt.connector->start(
      [this, rank](Connector::Outcome outcome) { onDialled(rank, std::move(outcome)); });
}

void Reunion::onDialled(std::int32_t rank, Connector::Outcome outcome) {
  Attempt& attempt = attempts_.at(rank);
  if (outcome.error && !outcome.displaced) {
    dialLater(rank);
    attempt.connector.reset();
    return;
  }
  const std::shared_ptr<Peer> lost = attempt.lost;
  attempts_.erase(rank);
  if (peers_.find(rank) != lost) return;
  if (outcome.displaced) return lost->displacedThere();
  // A successor makes itself known.
  if (lost->session().isAnother(outcome.peer.incarnation)) return;
  const auto thrown = thrownBy([&] {
    met_({outcome.peer, outcome.claim, std::move(outcome.stream)});
  });
  if (!thrown) return;
  log(LogLevel::kError,
      "connecting to " + describePeer(lost->name(), rank) + " again failed (" + *thrown + ")");
  begin(rank);
}

}  // namespace weft::transport
