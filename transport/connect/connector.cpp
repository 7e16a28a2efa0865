#include "transport/connect/connector.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/os/secure_random.h"
#include "transport/base/os/system_error.h"
#include "transport/base/peer_name.h"
#include "transport/base/thrown.h"
#include "transport/io/socket.h"

namespace weft::transport {
namespace {

constexpr std::chrono::milliseconds kFirstPause{10};
constexpr std::chrono::milliseconds kLongestPause{500};

}  // namespace

Connector::Connector(const EndpointContext& context, PeerInfo peer, const Address& address,
                     const SessionClaim& claim, RetryBackoff backoff)
    : context_(context),
      peer_(std::move(peer)),
      address_(address),
      claim_(claim),
      backoff_(backoff),
      deadline_(context.loop, [this] { onDeadline(); }),
      pause_timer_(context.loop, [this] { round(); }) {
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
  if (backoff_.all.count() > 0) deadline_.start(backoff_.all);
  round();
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
  const auto dial = [this] {
    return candidates_[next_].is_unix ? connectUnix(address_.unix_name)
                                      : connectTcp(address_.tcp_host, address_.tcp_port);
  };
  Connecting connecting = dial();
  if (context_.spare.giveUpFor(connecting.error)) connecting = dial();
  connecting_ = std::move(connecting.fd);
  if (connecting.error == 0) return onConnected();
  if (connecting.error != EINPROGRESS) return onConnectFailed(connecting.error);
  poll_ = std::make_unique<Poll>(context_.loop, connecting_.get(), [this](Poll::Ready ready) {
    poll_.reset();
    int error = connectError(connecting_.get());
    if (error == 0) error = ready.error;
    error == 0 ? onConnected() : onConnectFailed(error);
  });
  poll_->want(false, true);
}

void Connector::onConnectFailed(int error) {
  if (error == ECONNREFUSED || error == ENOENT) ++refused_;
  const bool exhausted = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
  nextCandidate(exhausted ? resourceExhausted(errnoText(error)) : errnoText(error));
}

void Connector::nextCandidate(const std::string& problem) {
  connecting_.reset();
  last_problem_ = candidates_[next_].text + ": " + problem;
  if (logEnabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug,
        "no connection to " + describePeer(peer_.name, peer_.rank) + " at " + last_problem_);
  }
  ++next_;
  attempt();
}

void Connector::onConnected() {
  // Another user's process may have taken the name: it is not told a word. A peer that does run as
  // another user is reached over TCP.
  if (candidates_[next_].is_unix && !context_.options.accept_other_users) {
    if (const Error error = sameUser(connecting_.get())) {
      const std::string problem =
          error.text() + "; WEFT_OTHER_USERS=1 on all workers of the host admits it";
      log(LogLevel::kInfo, describePeer(peer_.name, peer_.rank) + ": " + problem);
      return nextCandidate(problem);
    }
  }
  Nonce nonce{};
  if (Error error = fillRandom(nonce)) return fail(ErrorCode::kSystem, error.text());
  const bool is_unix = candidates_[next_].is_unix;
  const EncryptionTerms terms = encryptionTerms(context_, connecting_.get(), !is_unix);
  const auto thrown = thrownBy([&] {
    auto stream = std::make_shared<SocketStream>(std::move(connecting_), is_unix ? "unix" : "tcp");
    handshake_ = std::make_unique<HandshakeRunner>(
        context_.loop, std::move(stream),
        Handshake::dialler(context_.self, peer_.rank, peer_.name, nonce, claim_, terms));
    handshake_->start(backoff_.handshake, [this](HandshakeOutcome outcome) {
      handshake_.reset();
      onHandshake(std::move(outcome));
    });
  });
  if (!thrown) return;
  handshake_.reset();
  nextCandidate("no connection could be started here (" + *thrown + ")");
}

void Connector::onHandshake(HandshakeOutcome outcome) {
  using Kind = HandshakeOutcome::Kind;
  duplicate_ = false;
  const std::string& where = candidates_[next_].text;
  const Handshake& handshake = outcome.handshake;
  switch (outcome.kind) {
    case Kind::kEnded:
      if (handshake.status() == Handshake::Status::kRefusedByPeer)
        return onRefused(handshake.refusal(), handshake.peerVersion());
      if (handshake.status() == Handshake::Status::kRefused) {
        const std::string why = outcome.tls_problem ? outcome.tls_problem.text()
                                                    : std::string(explain(handshake.refusal()));
        last_problem_ = where + ": refused: " + why;
        if (metBefore()) break;
        return fail(ErrorCode::kAuthFailed, "refused at " + where + ": " + why);
      }
      return finish(
          {Error::ok(), std::move(outcome.stream), handshake.peer(), handshake.peerClaim()});
    case Kind::kTlsFailed:
      last_problem_ = where + ": TLS: " + outcome.tls_problem.text();
      if (outcome.tls_problem.code() == ErrorCode::kAuthFailed && !metBefore())
        return fail(ErrorCode::kAuthFailed, "refused at " + where + ": " +
                                                outcome.tls_problem.text() +
                                                "; check WEFT_TLS_CERT and WEFT_TLS_CA of both");
      break;
    case Kind::kTimeout:
      last_problem_ =
          where + ": the handshake was not answered within " + seconds(backoff_.handshake);
      break;
    case Kind::kBroken:
      last_problem_ = where + ": the connection was closed during the handshake" +
                      (outcome.error != 0 ? " (" + errnoName(outcome.error) + ")" : "");
      break;
  }
  // This address has a listener, so the problem may be temporary.
  backOff();
}

void Connector::onRefused(RefusalCode code, std::uint16_t peer_version) {
  if (code == RefusalCode::kDuplicate) {
    duplicate_ = true;
    last_problem_ =
        candidates_[next_].text +
        ": it has a connection with a worker of this rank already, or its own connection "
        "did not arrive";
    return backOff();
  }
  if (code == RefusalCode::kDisplaced) {
    log(LogLevel::kError, describePeer(context_.self.name, context_.self.rank) +
                              " is displaced: another process has taken its rank and name at " +
                              describePeer(peer_.name, peer_.rank) + ". " + kWhoCanTakeARank);
    Outcome outcome;
    outcome.error = Error(ErrorCode::kAuthFailed, "this worker is displaced");
    outcome.displaced = true;
    return finish(std::move(outcome));
  }
  if (code == RefusalCode::kStale) {
    return fail(ErrorCode::kPeerLost,
                "it has declared this worker lost, and their session is over");
  }
  if (metBefore()) {
    last_problem_ = candidates_[next_].text + ": it refused: " + explain(code);
    return backOff();
  }
  const std::string versions = code == RefusalCode::kVersion
                                   ? " (it speaks " + std::to_string(peer_version) + ", this one " +
                                         std::to_string(kProtocolVersion) + ")"
                                   : "";
  // If it is of another group, the member is gone, and another process has its address.
  fail(code == RefusalCode::kGroup ? ErrorCode::kConnectFailed : ErrorCode::kAuthFailed,
       "it refused: " + std::string(explain(code)) + versions);
}

void Connector::backOff() {
  pause_ = pause_.count() == 0 ? kFirstPause : std::min(pause_ * 2, kLongestPause);
  pause_timer_.start(pause_);
}

void Connector::onDeadline() {
  const std::string none =
      "no connection within " + seconds(backoff_.all) + " (last: " + last_problem_ + "); ";
  // It answers, so it lives: only this process's place there is taken.
  if (duplicate_ && !metBefore()) {
    return fail(ErrorCode::kDuplicate,
                none + "give every worker a rank of its own; to replace a worker, end it first");
  }
  fail(ErrorCode::kConnectFailed,
       none + "check that it runs, and that its host and port can be reached from here");
}

void Connector::fail(ErrorCode code, std::string why) {
  Outcome outcome;
  outcome.error = Error(code, std::move(why));
  finish(std::move(outcome));
}

void Connector::finish(Outcome outcome) {
  poll_.reset();
  connecting_.reset();
  handshake_.reset();
  deadline_.cancel();
  pause_timer_.cancel();
  const Done done = std::exchange(done_, nullptr);
  done(std::move(outcome));  // may destroy this
}

}  // namespace weft::transport
