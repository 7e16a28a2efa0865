#include "transport/connect/acceptor.h"

#include <cstring>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/secure_random.h"

namespace weft::transport {

Acceptor::Acceptor(const EndpointContext& context, Events events)
    : context_(context), events_(std::move(events)) {}

void Acceptor::listen(UniqueFd fd, const char* transport_name) {
  listeners_.push_back(std::make_unique<Listener>(context_.loop, std::move(fd),
                                                  [this, transport_name](UniqueFd accepted) {
                                                    onAccepted(std::move(accepted), transport_name);
                                                  }));
}

void Acceptor::stop() {
  listeners_.clear();
  running_.clear();
}

void Acceptor::onAccepted(UniqueFd fd, const char* transport_name) {
  if (running_.size() >= context_.options.limits.max_unauthenticated) {
    ++overloads_;  // and closes it: an honest dialler tries again
    return;
  }
  Nonce nonce{};
  if (Error error = fillRandom(nonce)) {
    log(LogLevel::kError, error.text());
    return;
  }
  if (std::strcmp(transport_name, "unix") == 0) {
    tuneUnix(fd.get());
  } else {
    tuneTcp(fd.get());
  }
  const std::uint64_t id = next_id_++;
  auto runner = std::make_shared<HandshakeRunner>(
      context_.loop, std::make_shared<SocketStream>(std::move(fd), transport_name),
      Handshake::acceptor(context_.self, nonce, *this));
  running_.emplace(id, runner);
  runner->start(context_.options.handshake_timeout,
                [this, id](HandshakeOutcome outcome) { onHandshake(id, std::move(outcome)); });
}

void Acceptor::onHandshake(std::uint64_t id, HandshakeOutcome outcome) {
  const auto found = running_.find(id);
  // This call comes from inside the runner.
  context_.loop.post([keep = std::move(found->second)]() mutable { keep.reset(); });
  running_.erase(found);
  switch (outcome.kind) {
    case HandshakeOutcome::Kind::kDone:
      return events_.admitted({std::move(outcome.peer), outcome.claim, std::move(outcome.stream)});
    case HandshakeOutcome::Kind::kRefused:
      ++refused_[static_cast<std::size_t>(outcome.refusal)];
      return;
    case HandshakeOutcome::Kind::kTimeout:
      ++timeouts_;
      return;
    case HandshakeOutcome::Kind::kRefusedByPeer:
      return;  // not something an acceptor is told
    case HandshakeOutcome::Kind::kBroken:
      return;  // a dialler may change its mind
  }
}

void Acceptor::counts(EndpointStats& stats) const {
  const auto of = [this](RefusalCode code) {
    return refused_[static_cast<std::size_t>(code)].load(std::memory_order_relaxed);
  };
  stats.refused_key = of(RefusalCode::kKey);
  stats.refused_group = of(RefusalCode::kGroup);
  stats.refused_identity = of(RefusalCode::kIdentity);
  stats.refused_version = of(RefusalCode::kVersion);
  stats.refused_replay = of(RefusalCode::kReplay);
  stats.refused_malformed = of(RefusalCode::kMalformed);
  stats.refused_timeout = timeouts_.load(std::memory_order_relaxed);
  stats.refused_overload = overloads_.load(std::memory_order_relaxed);
}

}  // namespace weft::transport
