#include "transport/peer/acceptor.h"

#include <cstring>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/secure_random.h"

namespace weft::transport {

Acceptor::Acceptor(EventLoop& loop, const EndpointOptions& options, const Identity& self,
                   Events events)
    : loop_(loop), options_(options), self_(self), events_(std::move(events)) {}

void Acceptor::listen(UniqueFd fd, const char* transport_name) {
  listeners_.push_back(
      std::make_unique<Listener>(loop_, std::move(fd), [this, transport_name](UniqueFd accepted) {
        onAccepted(std::move(accepted), transport_name);
      }));
}

void Acceptor::stop() {
  listeners_.clear();
  running_.clear();
}

void Acceptor::onAccepted(UniqueFd fd, const char* transport_name) {
  if (running_.size() >= options_.limits.max_unauthenticated) {
    count(Refused::kOverload);  // and closes it: a dialler in good faith tries again
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
      loop_, std::make_shared<SocketStream>(std::move(fd), transport_name),
      Handshake::acceptor(self_, nonce, *this));
  running_.emplace(id, runner);
  runner->start(options_.handshake_timeout,
                [this, id](HandshakeOutcome outcome) { onHandshake(id, std::move(outcome)); });
}

void Acceptor::onHandshake(std::uint64_t id, HandshakeOutcome outcome) {
  const auto found = running_.find(id);
  // This call comes from inside the runner.
  loop_.post([keep = std::move(found->second)]() mutable { keep.reset(); });
  running_.erase(found);
  switch (outcome.kind) {
    case HandshakeOutcome::Kind::kDone:
      return events_.admitted({std::move(outcome.peer), outcome.claim, std::move(outcome.stream)});
    case HandshakeOutcome::Kind::kRefused:
      return count(outcome.refusal);
    case HandshakeOutcome::Kind::kTimeout:
      return count(Refused::kTimeout);
    case HandshakeOutcome::Kind::kRefusedByPeer:
      return;  // not something an acceptor is told
    case HandshakeOutcome::Kind::kBroken:
      return;  // a dialler may change its mind
  }
}

void Acceptor::count(RefusalCode code) {
  switch (code) {
    case RefusalCode::kVersion:
      return count(Refused::kVersion);
    case RefusalCode::kGroup:
      return count(Refused::kGroup);
    case RefusalCode::kIdentity:
      return count(Refused::kIdentity);
    case RefusalCode::kKey:
      return count(Refused::kKey);
    case RefusalCode::kReplay:
      return count(Refused::kReplay);
    case RefusalCode::kMalformed:
      return count(Refused::kMalformed);
    case RefusalCode::kNone:
    case RefusalCode::kDuplicate:  // normal: both dialled
    case RefusalCode::kStale:
      return;
  }
}

void Acceptor::counts(EndpointStats& stats) const {
  const auto of = [this](Refused cause) {
    return refused_[static_cast<std::size_t>(cause)].load(std::memory_order_relaxed);
  };
  stats.refused_key = of(Refused::kKey);
  stats.refused_group = of(Refused::kGroup);
  stats.refused_identity = of(Refused::kIdentity);
  stats.refused_version = of(Refused::kVersion);
  stats.refused_replay = of(Refused::kReplay);
  stats.refused_timeout = of(Refused::kTimeout);
  stats.refused_overload = of(Refused::kOverload);
  stats.refused_malformed = of(Refused::kMalformed);
}

}  // namespace weft::transport
