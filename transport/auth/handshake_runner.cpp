#include "transport/auth/handshake_runner.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <string_view>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/thrown.h"
#include "transport/checksum/checked_stream.h"
#include "transport/tls/tls_stream.h"

namespace weft::transport {

HandshakeRunner::HandshakeRunner(EventLoop& loop, std::shared_ptr<Stream> stream,
                                 Handshake handshake)
    : loop_(loop), stream_(std::move(stream)), handshake_(std::move(handshake)) {}

void HandshakeRunner::start(std::chrono::milliseconds timeout, Done done, Named named) {
  done_ = std::move(done);
  named_ = std::move(named);
  deadline_ =
      std::make_unique<Timer>(loop_, [this] { finish({HandshakeOutcome::Kind::kTimeout}); });
  deadline_->start(timeout);
  // A failed first write shows as an error or an end when the stream becomes readable.
  static_cast<void>(writeOutput());
  poll_ = std::make_unique<Poll>(loop_, stream_->pollFd(),
                                 [this](Poll::Ready ready) { onReadable(ready.error); });
  poll_->want(true, false);
}

void HandshakeRunner::onReadable(int poll_error) {
  std::optional<Ending> ending = std::nullopt;
  if (const auto thrown = thrownBy([&] { ending = readSome(poll_error); })) {
    log(LogLevel::kWarning, "a handshake could not be served here (" + *thrown + ")");
    return finish({HandshakeOutcome::Kind::kBroken, ENOMEM});
  }
  if (ending) finish(*ending);
}

// Nothing: more is to come.
std::optional<HandshakeRunner::Ending> HandshakeRunner::readSome(int poll_error) {
  using Kind = HandshakeOutcome::Kind;
  std::array<std::byte, Hello::kBytes> bytes;
  while (handshake_.wanted() > 0 || handshake_.wantsTls()) {
    if (handshake_.wantsTls()) {
      const Secured secured = secureSome();
      if (secured == Secured::kFailed) return Ending{Kind::kTlsFailed};
      if (secured == Secured::kNotYet && poll_error != 0) return Ending{Kind::kBroken, poll_error};
      if (secured == Secured::kNotYet) return std::nullopt;
      if (!writeOutput()) return Ending{Kind::kBroken, EPIPE};
      continue;
    }
    // Never more than the handshake wants: what follows it belongs to the frames.
    iovec into{bytes.data(), std::min(bytes.size(), handshake_.wanted())};
    const IoResult result = stream_->read(std::span(&into, 1));
    if (result.error == EAGAIN && poll_error != 0) return Ending{Kind::kBroken, poll_error};
    if (result.error == EAGAIN) return std::nullopt;
    if (tls_ != nullptr && (result.error == EBADMSG || result.error == EPROTO)) {
      tls_problem_ = tls_->problem();
      return Ending{Kind::kTlsFailed};
    }
    if (result.error != 0 || result.end) return Ending{Kind::kBroken, result.error};
    handshake_.feed(std::span(bytes).first(result.count));
    if (!writeOutput()) return Ending{Kind::kBroken, EPIPE};
    if (named_ && handshake_.named()) std::exchange(named_, nullptr)(handshake_.peer());
  }
  return Ending{Kind::kEnded};
}

// One step of TLS. Where it ends, the peer's name is known, if certificates prove it.
HandshakeRunner::Secured HandshakeRunner::secureSome() {
  const Identity& self = handshake_.self();
  const bool dials = handshake_.role() == HelloRole::kDialler;
  if (tls_ == nullptr) {
    tls_ = std::make_shared<TlsConnection>(
        stream_, self.tls, dials ? TlsConnection::Role::kDialler : TlsConnection::Role::kAcceptor,
        handshake_.tlsKey());
  }
  const TlsConnection::Step step = tls_->handshake();
  if (step == TlsConnection::Step::kFailed) tls_problem_ = tls_->problem();
  if (step == TlsConnection::Step::kFailed) return Secured::kFailed;
  if (poll_ != nullptr) poll_->want(true, tls_->unsent());
  if (step == TlsConnection::Step::kAgain) return Secured::kNotYet;
  stream_ = std::make_shared<TlsStream>(tls_);
  if (self.tls->certificates() && !checkCertificate()) {
    handshake_.notSecured(RefusalCode::kCertificateName);
    return Secured::kYes;
  }
  const auto binding = tls_->channelBinding();
  if (!binding) throw std::bad_alloc();
  handshake_.secured(*binding);
  return Secured::kYes;
}

// Whether the peer's certificate is for the name that it says it has.
bool HandshakeRunner::checkCertificate() {
  const std::string& name = handshake_.peer().name;
  std::string shown;
  for (const std::string& certified : tls_->peerNames()) {
    if (certified == name) return true;
    shown += (shown.empty() ? "'" : ", '") + certified + "'";
  }
  tls_problem_ = {ErrorCode::kAuthFailed,
                  "it says that it is '" + name + "', but its certificate is for " + shown};
  return false;
}

// A fresh connection always has room for these few bytes.
bool HandshakeRunner::writeOutput() {
  const std::vector<std::byte> output = handshake_.output();
  if (output.empty()) return true;
  iovec from{const_cast<std::byte*>(output.data()), output.size()};
  const IoResult result = stream_->write(std::span(&from, 1), {});
  return result.error == 0 && result.count == output.size();
}

// What the frames go over. Bytes between hosts are encrypted, or have checksums.
std::shared_ptr<Stream> HandshakeRunner::framesStream() {
  if (tls_ != nullptr) tls_->readAhead();
  if (tls_ != nullptr || std::string_view(stream_->transportName()) != "tcp")
    return std::move(stream_);
  return std::make_shared<CheckedStream>(std::move(stream_), handshake_.checksumSeeds());
}

void HandshakeRunner::finish(Ending ending) {
  deadline_.reset();
  poll_.reset();  // the next owner of the stream polls it anew
  const bool proved = ending.kind == HandshakeOutcome::Kind::kEnded &&
                      handshake_.status() == Handshake::Status::kDone;
  std::shared_ptr<Stream> stream;
  if (proved && thrownBy([&] { stream = framesStream(); }))
    ending = {HandshakeOutcome::Kind::kBroken, ENOMEM};
  HandshakeOutcome outcome{ending.kind, ending.error, std::move(handshake_), std::move(stream),
                           std::move(tls_problem_)};
  tls_.reset();
  stream_.reset();
  const Done done = std::exchange(done_, nullptr);
  done(std::move(outcome));  // may destroy this
}

}  // namespace weft::transport
