// A TLS peer with a certificate that OpenSSL runs by itself: it can say what a TlsStream never
// does.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <span>
#include <utility>

#include "tests/support/fuzz_input.h"
#include "transport/tls/tls_bio.h"
#include "transport/tls/tls_context.h"

namespace weft::transport {

class RawTls {
 public:
  // `context`: one with certificates.
  RawTls(std::shared_ptr<Stream> below, const TlsContext& context, bool dials)
      : below_(std::move(below)), bio_(*below_), ssl_(::SSL_new(context.get())) {
    testing::require(ssl_ != nullptr);
    BIO* const bio = bio_.make();
    ::SSL_set_bio(ssl_, bio, bio);
    dials ? ::SSL_set_connect_state(ssl_) : ::SSL_set_accept_state(ssl_);
  }
  ~RawTls() { ::SSL_free(ssl_); }
  RawTls(const RawTls&) = delete;
  RawTls& operator=(const RawTls&) = delete;

  // True: it is done.
  bool handshake() {
    bio_.beginRead();
    const bool done = ::SSL_do_handshake(ssl_) == 1;
    flush();
    return done;
  }
  // "From now on I use another key."
  void takeNextKey() {
    testing::require(::SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 &&
                     ::SSL_do_handshake(ssl_) == 1);
    flush();
  }
  // One record, at most.
  void write(std::span<const std::byte> bytes) {
    std::size_t written = 0;
    testing::require(::SSL_write_ex(ssl_, bytes.data(), bytes.size(), &written) == 1);
    flush();
  }

 private:
  void flush() {
    testing::require(bio_.flush() == 0);
    bio_.clear();
  }

  const std::shared_ptr<Stream> below_;
  TlsBio bio_;
  SSL* const ssl_;
};

}  // namespace weft::transport
