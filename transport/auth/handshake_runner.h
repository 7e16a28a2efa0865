// HandshakeRunner: drives one Handshake over one stream within a deadline. Loop thread only.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "transport/auth/handshake.h"
#include "transport/io/event_loop.h"
#include "transport/io/poll.h"
#include "transport/io/stream.h"
#include "transport/io/timer.h"
#include "transport/tls/tls_connection.h"

namespace weft::transport {

struct HandshakeOutcome {
  enum class Kind : std::uint8_t { kEnded, kTimeout, kBroken, kTlsFailed };
  Kind kind;      // kEnded: as handshake.status() says
  int error = 0;  // kBroken: errno, 0 for the end of the stream
  Handshake handshake;
  std::shared_ptr<Stream> stream;  // Handshake::Status::kDone
  // kTlsFailed, or kEnded with kCertificateName: why. kAuthFailed will not pass.
  Error tls_problem = Error::ok();
};

class HandshakeRunner {
 public:
  using Done = std::function<void(HandshakeOutcome)>;
  using Named = std::function<void(const Hello&)>;

  HandshakeRunner(EventLoop& loop, std::shared_ptr<Stream> stream, Handshake handshake);

  // `done` is called once, not from start(). It may destroy this object. `named` is called before
  // that, when the peer's hello was right (Handshake::named()); it must not touch this object.
  void start(std::chrono::milliseconds timeout, Done done, Named named = nullptr);
  // Reads what has arrived, without waiting for the loop's event. May call `done` and `named`.
  void readNow() { onReadable(0); }

 private:
  struct Ending {
    HandshakeOutcome::Kind kind;
    int error = 0;
  };
  enum class Secured : std::uint8_t { kYes, kNotYet, kFailed };
  void onReadable(int poll_error);
  std::optional<Ending> readSome(int poll_error);
  Secured secureSome();
  bool checkCertificate();
  bool writeOutput();
  std::shared_ptr<Stream> framesStream();
  void finish(Ending ending);

  EventLoop& loop_;
  std::shared_ptr<Stream> stream_;
  Handshake handshake_;
  std::shared_ptr<TlsConnection> tls_;  // once TLS has begun
  Error tls_problem_;
  std::unique_ptr<Poll> poll_;
  std::unique_ptr<Timer> deadline_;
  Done done_;
  Named named_;
};

}  // namespace weft::transport
