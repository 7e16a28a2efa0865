#include "transport/peer/connector.h"

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
      return "the ranks or names do not fit: another worker answers at this address, or the two "
             "disagree about who is who; "
             "check for a rank or name given twice";
    case RefusalCode::kKey:
      return "the authentication keys differ; give all workers the same key file "
             "(WEFT_AUTH_KEY_FILE)";
    case RefusalCode::kReplay:
      return "it saw this greeting before; something between the two repeats messages";
    case RefusalCode::kMalformed:
      return "what answers at this address does not speak Weft's protocol";
    default:
      return "for an unknown reason";
  }
}

}  // namespace

Connector::Connector(EventLoop& loop, const EndpointOptions& options, const Identity& self,
                     PeerInfo peer, const Address& address, const std::string& own_host,
                     const SessionClaim& claim, RetryBackoff patience)
    : loop_(loop),
      options_(options),
      self_(self),
      peer_(std::move(peer)),
      address_(address),
      claim_(claim),
      patience_(patience) {
  const bool same_host = !own_host.empty() && address_.host == own_host;
  if (options_.unix_socket && same_host && address_.hasUnix()) {
    candidates_.push_back({true, "the Unix socket @" + address_.unix_name});
  }
  if (options_.tcp && address_.hasTcp()) {
    candidates_.push_back({false, formatHostPort(address_.tcp_host, address_.tcp_port)});
  }
}

void Connector::start(Done done) {
  done_ = std::move(done);
  began_ = EventLoop::Clock::now();
  if (candidates_.empty()) {
    return fail(ErrorCode::kConnectFailed,
                "the two share no transport: its address is " + formatAddress(address_));
  }
  deadline_ = std::make_unique<EventLoop::Timer>(loop_, [this] { onDeadline(); });
  if (patience_.all.count() > 0) deadline_->start(patience_.all);
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
  poll_ =
      std::make_unique<EventLoop::Poll>(loop_, connecting_.get(), [this](EventLoop::Poll::Ready) {
        poll_.reset();
        const int error = connectError(connecting_.get());
        if (error == 0) {
          onConnected();
        } else {
          onConnectFailed(error);
        }
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
      loop_, std::move(stream), Handshake::dialler(self_, peer_.rank, peer_.name, nonce, claim_));
  handshake_->start(patience_.handshake, [this](HandshakeOutcome outcome) {
    loop_.post([keep = std::exchange(handshake_, nullptr)] {});
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
      if (outcome.refusal == RefusalCode::kDuplicate) {
        last_problem_ =
            where +
            ": it is connecting to this worker itself, but its connection did not come through";
        return backOff();
      }
      if (outcome.refusal == RefusalCode::kStale) {
        return fail(ErrorCode::kPeerLost,
                    "it has declared this worker lost; start the group again, or this worker under "
                    "a new address");
      }
      return fail(ErrorCode::kAuthFailed,
                  "it refused: " + std::string(explain(outcome.refusal)) +
                      (outcome.refusal == RefusalCode::kVersion
                           ? " (it speaks " + std::to_string(outcome.peer_version) + ", this one " +
                                 std::to_string(kProtocolVersion) + ")"
                           : ""));
    case Kind::kTimeout:
      last_problem_ =
          where + ": the handshake was not answered within " + seconds(patience_.handshake);
      break;
    case Kind::kBroken:
      last_problem_ = where + ": the connection was closed during the handshake" +
                      (outcome.error != 0 ? " (" + errnoName(outcome.error) + ")" : "");
      break;
  }
  // This address has a listener: what went wrong may pass.
  backOff();
}

void Connector::backOff() {
  stage_ = Stage::kBackoff;
  pause_ = pause_.count() == 0 ? kFirstPause : std::min(pause_ * 2, kLongestPause);
  if (pause_timer_ == nullptr)
    pause_timer_ = std::make_unique<EventLoop::Timer>(loop_, [this] { round(); });
  pause_timer_->start(pause_);
}

void Connector::onDeadline() {
  fail(ErrorCode::kConnectFailed,
       "no connection within " + seconds(patience_.all) + " (last: " + last_problem_ +
           "); check that it runs, and that its host and port can be reached from here");
}

void Connector::fail(ErrorCode code, const std::string& why) {
  finish({Error(code, who() + " cannot be reached: " + why), nullptr, {}, {}, why});
}

void Connector::finish(Outcome outcome) {
  Done done = std::exchange(done_, nullptr);
  cancel();
  if (done) done(std::move(outcome));
}

std::string Connector::who() const { return describePeer(peer_.name, peer_.rank); }

}  // namespace weft::transport
