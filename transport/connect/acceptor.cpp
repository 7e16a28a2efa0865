#include "transport/connect/acceptor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/os/secure_random.h"
#include "transport/base/peer_name.h"
#include "transport/io/address.h"
#include "transport/io/socket.h"

namespace weft::transport {
namespace {

// Connections in handshake at once: so many that have said nothing yet, and as many whose hello was
// right. Known peers that come from where they listen do not count.
constexpr std::size_t kMaxUnauthenticated = 64;
// Of them, of one IPv4 address, IPv6 /64 or local user among those that have said nothing.
constexpr std::size_t kMaxPerSource = 16;
// A peer has a connection, a bulk connection, and each of them anew when it broke.
constexpr std::size_t kMaxPerRank = 4;

// The other codes answer members, and are no attack; TLS counts kCertificate.
constexpr std::array kCauses{std::pair{RefusalCode::kKey, RefusalCause::kKey},
                             std::pair{RefusalCode::kGroup, RefusalCause::kGroup},
                             std::pair{RefusalCode::kIdentity, RefusalCause::kIdentity},
                             std::pair{RefusalCode::kVersion, RefusalCause::kVersion},
                             std::pair{RefusalCode::kEncryption, RefusalCause::kEncryption},
                             std::pair{RefusalCode::kCredentials, RefusalCause::kEncryption},
                             std::pair{RefusalCode::kMalformed, RefusalCause::kMalformed}};

}  // namespace

Acceptor::Rooms::Rooms()
    : silent(kMaxUnauthenticated, kMaxPerSource),
      named(kMaxUnauthenticated, kMaxPerRank),
      expected(std::numeric_limits<std::size_t>::max(), kMaxPerRank) {}

void Acceptor::Rooms::clear() {
  for (WaitingRoom* room : {&silent, &named, &expected})
    room->clear();
}

void Acceptor::Rooms::leave(std::uint64_t id) {
  for (WaitingRoom* room : {&silent, &named, &expected})
    room->leave(id);
}

Acceptor::Acceptor(const EndpointContext& context, AcceptPolicy& policy, AddressOf address_of,
                   Admitted admitted)
    : context_(context),
      policy_(policy),
      address_of_(std::move(address_of)),
      admitted_(std::move(admitted)) {}

void Acceptor::listen(UniqueFd fd, const char* transport_name) {
  const bool is_unix = std::string_view(transport_name) == "unix";
  listeners_.push_back(std::make_unique<Listener>(
      context_, std::move(fd), [this, is_unix](UniqueFd accepted, const sockaddr_storage& from) {
        onAccepted(std::move(accepted), is_unix, from);
      }));
}

void Acceptor::stop() {
  listeners_.clear();
  running_.clear();
  unix_rooms_.clear();
  tcp_rooms_.clear();
}

void Acceptor::onAccepted(UniqueFd fd, bool is_unix, const sockaddr_storage& from) {
  Source source{is_unix, 0};
  if (is_unix) {
    const Result<uid_t> user = peerUser(fd.get());
    if (!user.ok()) return;
    if (user.value() != ::geteuid() && !context_.options.accept_other_users) {
      count(RefusalCause::kUser);
      return;
    }
    source.number = user.value();
  } else {
    source.number = networkOf(from);
  }
  Nonce nonce{};
  if (Error error = fillRandom(nonce)) {
    log(LogLevel::kError, error.text());
    return;
  }
  is_unix ? tuneUnix(fd.get()) : tuneTcp(fd.get());
  const EncryptionTerms terms = encryptionTerms(context_, fd.get(), !is_unix);
  const std::uint64_t id = next_id_++;
  enter(roomsOf(source).silent, id, source.number);
  auto& runner = running_[id] = std::make_unique<HandshakeRunner>(
      context_.loop, std::make_shared<SocketStream>(std::move(fd), is_unix ? "unix" : "tcp"),
      Handshake::acceptor(context_.self, nonce, policy_, terms));
  runner->start(
      context_.options.handshake_timeout,
      [this, id](HandshakeOutcome outcome) { onHandshake(id, std::move(outcome)); },
      [this, id, source](const Hello& hello) { onNamed(id, source, hello.rank); });
}

void Acceptor::onNamed(std::uint64_t id, const Source& source, std::int32_t rank) {
  constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15;  // keeps ranks of one source apart
  const auto number = static_cast<std::uint64_t>(rank);
  Rooms& rooms = roomsOf(source);
  rooms.silent.leave(id);
  if (isExpected(source, rank)) return enter(rooms.expected, id, number);
  enter(rooms.named, id, source.number * kSpread + number);
}

// Whether this is the source that the peer of this rank would have. On a Unix socket: this user.
bool Acceptor::isExpected(const Source& source, std::int32_t rank) const {
  const Result<Address> address = parseAddress(address_of_(rank));
  if (!address.ok()) return false;
  if (source.is_unix) return source.number == ::geteuid();
  return address.value().hasTcp() && networkOf(address.value().tcp_host) == source.number;
}

void Acceptor::enter(WaitingRoom& room, std::uint64_t id, std::uint64_t source) {
  while (const std::optional<std::uint64_t> other = room.inTheWayOf(source)) {
    // When many come at once, what this one has to say may have come: then it leaves by itself.
    if (const auto runner = running_.find(*other); runner != running_.end())
      runner->second->readNow();
    if (!room.has(*other)) continue;
    count(RefusalCause::kOverload);  // before it can see that it was cut off
    leave(*other);
  }
  room.enter(id, source);
}

void Acceptor::leave(std::uint64_t id) {
  running_.erase(id);
  unix_rooms_.leave(id);
  tcp_rooms_.leave(id);
}

void Acceptor::onHandshake(std::uint64_t id, HandshakeOutcome outcome) {
  leave(id);
  const Handshake& handshake = outcome.handshake;
  using Status = Handshake::Status;
  if (outcome.kind == HandshakeOutcome::Kind::kTimeout) count(RefusalCause::kTimeout);
  if (outcome.tls_problem.code() == ErrorCode::kAuthFailed) {
    count(RefusalCause::kCertificate);
    warnOnce(handshake.peer(), outcome.tls_problem.text());
  }
  if (outcome.kind != HandshakeOutcome::Kind::kEnded) return;  // a dialler may change its mind
  const RefusalCode refusal = handshake.refusal();
  for (const auto& [code, cause] : kCauses)
    if (code == refusal) count(cause);
  if (refusal == RefusalCode::kEncryption || refusal == RefusalCode::kCredentials)
    warnOnce(handshake.peer(), explain(refusal));
  if (handshake.status() == Status::kDone)
    admitted_({handshake.peer(), handshake.peerClaim(), std::move(outcome.stream)});
}

// A dialler that is refused knows it; this tells people who look at this side. Only once, because
// strangers must not fill the log.
void Acceptor::warnOnce(const Hello& hello, const std::string& why) {
  if (std::exchange(warned_, true)) return;
  log(LogLevel::kWarning, "refused a connection that says it is from " +
                              describePeer(hello.name, hello.rank) + ": " + why);
}

void Acceptor::counts(EndpointStats& stats) const {
  std::copy(refused_.begin(), refused_.end(), stats.refused.begin());
}

}  // namespace weft::transport
