#include "transport/connect/connector.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transport/base/peer_name.h"
#include "transport/base/secure_random.h"
#include "transport/base/system_error.h"
#include "transport/io/socket.h"

namespace weft::transport {
namespace {

constexpr std::chrono::milliseconds kFirstPause{10};
constexpr std::chrono::milliseconds kLongestPause{500};

const char* explain(RefusalCode code) {
  switch (code) {
    case RefusalCode::kVersion:
      return "it speaks another version of the protocol; install the same Weft on all workers";
    case RefusalCode::kGroup:
      return "it belongs to another group; check that both were started for the same job";
    case RefusalCode::kIdentity:
      return "the ranks or names do not match: another worker answers at this address, or the two "
             "disagree about who is who; "
             "check for a rank or name given twice";
    case RefusalCode::kKey:
      return "the authentication keys differ; give all workers the same key file "
             "(WEFT_AUTH_KEY_FILE)";
    case RefusalCode::kReplay:
      return "it received this handshake before; something between the two repeats messages";
    case RefusalCode::kMalformed:
      return "the process at this address does not speak Weft's protocol";
    default:
      return "for an unknown reason";
  }
}

}  // namespace

Connector::Connector(const EndpointContext& context, PeerInfo peer, const Address& address,
                     const SessionClaim& claim, RetryBackoff backoff)
    : context_(context),
      peer_(std::move(peer)),
      address_(address),
      claim_(claim),
      backoff_(backoff) {
  const bool same_host = !context.own_host.empty() && address_.host == context.own_host;
  if (context.options.unix_socket && same_host && address_.hasUnix()) {
    candidates_.push_back({true, "the Unix socket @" + address_.unix_name});
  }
  if (context.options.tcp && address_.hasTcp()) {
    candidates_.push_back({false, formatHostPort(address_.tcp_host, address_.tcp_port)});
  }
}

void Connector::start(Done done) {
  done_ = std::move(done);
  if (candidates_.empty()) {
    return fail(ErrorCode::kConnectFailed,
                "the two have no transport in common: its address is " + formatAddress(address_));
  }
  deadline_ = std::make_unique<EventLoop::Timer>(context_.loop, [this] { onDeadline(); });
  if (backoff_.all.count() > 0) deadline_->start(backoff_.all);
  round();
}

void Connector::cancel() {
  done_ = nullptr;
  poll_.reset();
  connecting_.reset();
  handshake_.reset();
  deadline_.reset();
  pause_timer_.reset();
  stage_ = Stage::kBackoff;
}

void Connector::round() {
  next_ = 0;
  refused_ = 0;
  attempt();
}

void Connector::attempt() {
  if (next_ == candidates_.size()) {
    // A published address was listened on before: nobody there now means nobody will be.
    if (refused_ == candidates_.size()) {
      return fail(ErrorCode::kConnectFailed,
                  "nothing listens at " + candidates_.back().text +
                      " any more (ECONNREFUSED); its process has probably ended");
    }
    return backOff();
  }
  stage_ = Stage::kConnecting;
  Connecting connecting = candidates_[next_].is_unix
                              ? connectUnix(address_.unix_name)
                              : connectTcp(address_.tcp_host, address_.tcp_port);
  connecting_ = std::move(connecting.fd);
  if (connecting.error == 0) return onConnected();
  if (connecting.error != EINPROGRESS) return onConnectFailed(connecting.error);
  poll_ = std::make_unique<EventLoop::Poll>(context_.loop, connecting_.get(),
                                            [this](EventLoop::Poll::Ready) {
                                              poll_.reset();
                                              const int error = connectError(connecting_.get());
                                              error == 0 ? onConnected() : onConnectFailed(error);
                                            });
  poll_->want(false, true);
}

void Connector::onConnectFailed(int error) {
  connecting_.reset();
  last_problem_ = candidates_[next_].text + ": " + errnoText(error);
  if (error == ECONNREFUSED || error == ENOENT) ++refused_;
  ++next_;
  attempt();
}

void Connector::onConnected() {
  Nonce nonce{};
  if (Error error = fillRandom(nonce)) return fail(ErrorCode::kSystem, error.text());
  stage_ = Stage::kHandshaking;
  auto stream = std::make_shared<SocketStream>(std::move(connecting_),
                                               candidates_[next_].is_unix ? "unix" : "tcp");
  handshake_ = std::make_shared<HandshakeRunner>(
      context_.loop, std::move(stream),
      Handshake::dialler(context_.self, peer_.rank, peer_.name, nonce, claim_));
  handshake_->start(backoff_.handshake, [this](HandshakeOutcome outcome) {
    context_.loop.post([keep = std::exchange(handshake_, nullptr)] {});
    onHandshake(std::move(outcome));
  });
}

void Connector::onHandshake(HandshakeOutcome outcome) {
  using Kind = HandshakeOutcome::Kind;
  const std::string& where = candidates_[next_].text;
  switch (outcome.kind) {
    case Kind::kDone:
      return finish(
          {Error::ok(), std::move(outcome.stream), std::move(outcome.peer), outcome.claim, {}});
    case Kind::kRefused:
      return fail(ErrorCode::kAuthFailed,
                  std::string("refused at ") + where + ": " + explain(outcome.refusal));
    case Kind::kRefusedByPeer:
      return onRefused(outcome.refusal, outcome.peer_version);
    case Kind::kTimeout:
      last_problem_ =
          where + ": the handshake was not answered within " + seconds(backoff_.handshake);
      break;
    case Kind::kBroken:
      last_problem_ = where + ": the connection was closed during the handshake" +
                      (outcome.error != 0 ? " (" + errnoName(outcome.error) + ")" : "");
      break;
  }
  // This address has a listener: what went wrong may pass.
  backOff();
}

void Connector::onRefused(RefusalCode code, std::uint16_t peer_version) {
  if (code == RefusalCode::kDuplicate) {
    last_problem_ = candidates_[next_].text +
                    ": it is connecting to this worker itself, but its connection did not arrive";
    return backOff();
  }
  if (code == RefusalCode::kStale) {
    return fail(ErrorCode::kPeerLost,
                "it has declared this worker lost; start the group again, or this worker under "
                "a new address");
  }
  const std::string versions = code == RefusalCode::kVersion
                                   ? " (it speaks " + std::to_string(peer_version) + ", this one " +
                                         std::to_string(kProtocolVersion) + ")"
                                   : "";
  fail(ErrorCode::kAuthFailed, "it refused: " + std::string(explain(code)) + versions);
}

void Connector::backOff() {
  stage_ = Stage::kBackoff;
  pause_ = pause_.count() == 0 ? kFirstPause : std::min(pause_ * 2, kLongestPause);
  if (pause_timer_ == nullptr)
    pause_timer_ = std::make_unique<EventLoop::Timer>(context_.loop, [this] { round(); });
  pause_timer_->start(pause_);
}

void Connector::onDeadline() {
  fail(ErrorCode::kConnectFailed,
       "no connection within " + seconds(backoff_.all) + " (last: " + last_problem_ +
           "); check that it runs, and that its host and port can be reached from here");
}

void Connector::fail(ErrorCode code, const std::string& why) {
  const std::string who = describePeer(peer_.name, peer_.rank);
  finish({Error(code, who + " cannot be reached: " + why), nullptr, {}, {}, why});
}

void Connector::finish(Outcome outcome) {
  Done done = std::exchange(done_, nullptr);
  cancel();
  if (done) done(std::move(outcome));
}

void Connector::retire(EventLoop& loop, std::shared_ptr<Connector>& connector) {
  if (connector == nullptr) return;
  connector->cancel();
  loop.post([old = std::exchange(connector, nullptr)]() mutable { old.reset(); });
}

}  // namespace weft::transport
