// HandshakeRunner: drives one Handshake over one stream within a deadline. Loop thread only.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "transport/auth/handshake.h"
#include "transport/io/event_loop.h"
#include "transport/io/stream.h"

namespace weft::transport {

struct HandshakeOutcome {
  enum class Kind : std::uint8_t { kDone, kRefused, kRefusedByPeer, kTimeout, kBroken };
  Kind kind = Kind::kBroken;
  RefusalCode refusal = RefusalCode::kNone;
  std::uint16_t peer_version = 0;
  int error = 0;                   // kBroken: errno, 0 for the end of the stream
  Hello peer;                      // kDone
  SessionClaim claim;              // kDone: the peer's
  std::shared_ptr<Stream> stream;  // kDone
};

class HandshakeRunner {
 public:
  using Done = std::function<void(HandshakeOutcome)>;

  HandshakeRunner(EventLoop& loop, std::shared_ptr<Stream> stream, Handshake handshake);

  // `done` is called once, not from start(). It must not destroy this object at once (post that).
  void start(std::chrono::milliseconds timeout, Done done);

 private:
  void onReadable();
  bool writeOutput();
  void finish(HandshakeOutcome::Kind kind, int error = 0);

  EventLoop& loop_;
  std::shared_ptr<Stream> stream_;
  Handshake handshake_;
  std::unique_ptr<EventLoop::Poll> poll_;
  std::unique_ptr<EventLoop::Timer> deadline_;
  Done done_;
};

}  // namespace weft::transport
