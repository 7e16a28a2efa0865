#include "transport/auth/handshake_runner.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace weft::transport {

HandshakeRunner::HandshakeRunner(EventLoop& loop, std::shared_ptr<Stream> stream,
                                 Handshake handshake)
    : loop_(loop), stream_(std::move(stream)), handshake_(std::move(handshake)) {}

void HandshakeRunner::start(std::chrono::milliseconds timeout, Done done) {
  done_ = std::move(done);
  deadline_ = std::make_unique<EventLoop::Timer>(
      loop_, [this] { finish(HandshakeOutcome::Kind::kTimeout); });
  deadline_->start(timeout);
  // A failed first write shows as an error or an end when the stream becomes readable.
  static_cast<void>(writeOutput());
  poll_ = std::make_unique<EventLoop::Poll>(loop_, stream_->pollFd(),
                                            [this](EventLoop::Poll::Ready) { onReadable(); });
  poll_->want(true, false);
}

void HandshakeRunner::onReadable() {
  using Kind = HandshakeOutcome::Kind;
  if (!done_) return;
  std::array<std::byte, Hello::kBytes> bytes;
  while (handshake_.wanted() > 0) {
    // Never more than the handshake wants: what follows it belongs to the frames.
    iovec into{bytes.data(), std::min(bytes.size(), handshake_.wanted())};
    const IoResult result = stream_->read(std::span(&into, 1));
    if (result.error == EAGAIN) return;
    if (result.error != 0 || result.end) return finish(Kind::kBroken, result.error);
    handshake_.feed(std::span(bytes).first(result.count));
    if (!writeOutput()) return finish(Kind::kBroken, EPIPE);
  }
  switch (handshake_.status()) {
    case Handshake::Status::kDone:
      return finish(Kind::kDone);
    case Handshake::Status::kRefused:
      return finish(Kind::kRefused);
    case Handshake::Status::kRefusedByPeer:
      return finish(Kind::kRefusedByPeer);
    case Handshake::Status::kRunning:
      return;
  }
}

// A fresh connection always has room for these few bytes.
bool HandshakeRunner::writeOutput() {
  const std::vector<std::byte> output = handshake_.output();
  if (output.empty()) return true;
  iovec from{const_cast<std::byte*>(output.data()), output.size()};
  const IoResult result = stream_->write(std::span(&from, 1));
  return result.error == 0 && result.count == output.size();
}

void HandshakeRunner::finish(HandshakeOutcome::Kind kind, int error) {
  HandshakeOutcome outcome;
  outcome.kind = kind;
  outcome.error = error;
  outcome.refusal = handshake_.refusal();
  outcome.peer_version = handshake_.peerVersion();
  deadline_.reset();
  poll_.reset();  // the next owner of the stream polls it anew
  if (kind == HandshakeOutcome::Kind::kDone) {
    outcome.peer = handshake_.peer();
    outcome.claim = handshake_.peerClaim();
    outcome.stream = stream_;
  }
  stream_.reset();
  std::exchange(done_, nullptr)(std::move(outcome));
}

}  // namespace weft::transport
