#include "transport/peer/peer_session.h"

#include <algorithm>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/peer_name.h"
#include "transport/io/address.h"
#include "transport/peer/peer_errors.h"

namespace weft::transport {

using std::chrono::milliseconds;

std::string PeerSession::describe() const { return describePeer(peer_.name, peer_.rank); }

Session& PeerSession::numbered() {
  if (session_.own() == 0) session_.setOwn(context_.sessions.of(peer_.rank));
  return session_;
}

milliseconds PeerSession::reconnectTime() const {
  return std::min(context_.options.reconnect_timeout, context_.options.peer_timeout);
}

Error PeerSession::dial() {
  const Result<Address> address = parseAddress(peer_.address);
  if (!address.ok()) {
    return {ErrorCode::kConnectFailed,
            peer_.address.empty() ? "its address is not known here" : address.error().text()};
  }
  Connector::RetryBackoff backoff{context_.options.connect_timeout,
                                  context_.options.handshake_timeout};
  // Several attempts should fit into the time there is.
  if (met())
    backoff = {milliseconds(0),
               std::min(std::max(reconnectTime() / 4, milliseconds(20)), backoff.handshake)};
  connector_ = std::make_unique<Connector>(context_, peer_, address.value(), claim(), backoff);
  if (met() && !connector_->hasWay()) {
    stopDialling();
  } else {
    connector_->start(on_dialled_);
  }
  return Error::ok();
}

Error PeerSession::judge(const Connector::Outcome& outcome) {
  if (outcome.displaced) {
    replaced_ = true;  // so that no reunion displaces this worker's successor there
    return peer_errors::displaced(describe());
  }
  if (outcome.error.code() == ErrorCode::kDuplicate) {
    log(LogLevel::kError, describePeer(context_.self.name, context_.self.rank) +
                              " is not admitted: another process has its rank and name at " +
                              describe() + ", and is alive. " + kWhoCanTakeARank);
  }
  if (outcome.error && !met()) return peer_errors::unreachable(describe(), outcome.error);
  if (outcome.error)
    return peer_errors::notReconnected(describe(), broken_how_, ": " + outcome.error.text());
  if (isAnother(outcome.peer.incarnation)) {
    replaced_ = true;
    return peer_errors::restarted(describe());
  }
  if (match(outcome.claim) != Session::Match::kSame) return peer_errors::lostSession(describe());
  return Error::ok();
}

void PeerSession::beginLink(std::uint64_t incarnation, const SessionClaim& theirs,
                            const char* transport) {
  if (met()) {
    reconnects_.fetch_add(1, std::memory_order_relaxed);
    if (logEnabled(LogLevel::kInfo))
      log(LogLevel::kInfo, "the connection to " + describe() + " was made again: " + broken_how_);
  } else if (logEnabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug, "connected to " + describe() + " over " + transport);
  }
  numbered().beginLink(theirs);
  incarnation_ = incarnation;
  broken_how_.clear();
  broken_silently_ = false;
}

void PeerSession::breakOff(std::string how, bool silent, Session::Time deadline) {
  broken_how_ = std::move(how);
  broken_silently_ = silent;
  session_.breakOff(deadline);
}

Error PeerSession::silent(std::chrono::nanoseconds silence) const {
  return peer_errors::silent(describe(), silence, context_.options.heartbeat_interval);
}

Error PeerSession::notReconnected(std::chrono::nanoseconds silence) const {
  if (broken_silently_) return silent(silence);
  const std::string last = dialling() ? " (last: " + connector_->lastProblem() + ")" : "";
  return peer_errors::notReconnected(describe(), broken_how_,
                                     " within " + seconds(reconnectTime()) + last);
}

void PeerSession::leave() { context_.sessions.forget(peer_.rank, session_.own()); }

void PeerSession::end() {
  leave();
  stopDialling();
}

}  // namespace weft::transport
