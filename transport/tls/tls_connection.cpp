#include "transport/tls/tls_connection.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <string_view>
#include <utility>

#include "transport/base/os/system_error.h"
#include "transport/tls/certificate_names.h"
#include "transport/tls/openssl_error.h"
#include "transport/tls/tls_context.h"

namespace weft::transport {
namespace {

// Messages of TLS itself carry nothing and cost a derivation of keys each. A writer needs one for
// each kBytesPerKey.
constexpr std::uint32_t kMostControls = 32;
constexpr std::size_t kControlsPerBytes = std::size_t{1} << 20;
constexpr std::string_view kKeyName = "weft";

// Whether this reason of an error is about a certificate, here or (an alert) at the other end.
bool aboutCertificate(int reason) noexcept {
  switch (reason) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return true;
    default:
      return false;
  }
}

}  // namespace

// None of them throws: OpenSSL is C.
struct TlsConnection::Callbacks {
  static TlsConnection& of(SSL* ssl) { return *static_cast<TlsConnection*>(SSL_get_app_data(ssl)); }

  // The dialler's key; SHA-256 is the only hash function that the ciphers allow.
  static int useKey(SSL* ssl, const EVP_MD*, const unsigned char** name, std::size_t* length,
                    SSL_SESSION** session) {
    *name = reinterpret_cast<const unsigned char*>(kKeyName.data());
    *length = kKeyName.size();
    *session = of(ssl).presharedSession();
    return *session != nullptr ? 1 : 0;
  }

  // The acceptor's.
  static int findKey(SSL* ssl, const unsigned char* name, std::size_t length,
                     SSL_SESSION** session) {
    const std::string_view asked(reinterpret_cast<const char*>(name), length);
    *session = asked == kKeyName ? of(ssl).presharedSession() : nullptr;
    return 1;
  }

  static void onMessage(int written, int, int type, const void*, std::size_t, SSL* ssl, void*) {
    if (written == 0 && type == SSL3_RT_HANDSHAKE) of(ssl).onControl();
  }
};

void TlsConnection::usePresharedKeys(SSL_CTX* context) {
  ::SSL_CTX_set_psk_use_session_callback(context, &Callbacks::useKey);
  ::SSL_CTX_set_psk_find_session_callback(context, &Callbacks::findKey);
}

ssl_session_st* TlsConnection::presharedSession() {
  SSL_SESSION* const session = ::SSL_SESSION_new();
  const std::array<unsigned char, 2> suite{0x13, 0x01};  // TLS_AES_128_GCM_SHA256
  const SSL_CIPHER* const cipher = ::SSL_CIPHER_find(ssl_, suite.data());
  if (session != nullptr && cipher != nullptr &&
      ::SSL_SESSION_set1_master_key(session, key_.data(), key_.size()) == 1 &&
      ::SSL_SESSION_set_cipher(session, cipher) == 1 &&
      ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  ::SSL_SESSION_free(session);
  return nullptr;
}

TlsConnection::TlsConnection(std::shared_ptr<Stream> below,
                             std::shared_ptr<const TlsContext> context, Role role,
                             const PresharedKey& key, std::uint64_t bytes_per_key)
    : below_(std::move(below)),
      bio_(*below_),
      context_(std::move(context)),
      role_(role),
      key_(key),
      bytes_per_key_(bytes_per_key) {
  ::ERR_clear_error();
  BIO* const bio = bio_.make();
  ssl_ = ::SSL_new(context_->get());
  if (ssl_ == nullptr) {
    ::BIO_free(bio);
    throw std::bad_alloc();
  }
  ::SSL_set_bio(ssl_, bio, bio);
  SSL_set_app_data(ssl_, this);
  if (role_ == Role::kDialler) {
    ::SSL_set_connect_state(ssl_);
  } else {
    // An acceptor that verifies takes no pre-shared key without a context; a dialler, whose key has
    // none, must not have one.
    ::SSL_set_session_id_context(ssl_, reinterpret_cast<const unsigned char*>(kKeyName.data()),
                                 kKeyName.size());
    ::SSL_set_accept_state(ssl_);
  }
}

TlsConnection::~TlsConnection() {
  ::SSL_free(ssl_);
  ::OPENSSL_cleanse(key_.data(), key_.size());
}

// --- the handshake ---

TlsConnection::Step TlsConnection::handshake() {
  bio_.beginRead();
  ::ERR_clear_error();
  const int done = ::SSL_do_handshake(ssl_);
  const int why = done == 1 ? SSL_ERROR_NONE : ::SSL_get_error(ssl_, done);
  const int reason = ERR_GET_REASON(::ERR_peek_error());
  const int send_error = bio_.flush();  // an alert, too
  if (why == SSL_ERROR_NONE) {
    ::OPENSSL_cleanse(key_.data(), key_.size());
    if (!context_->certificates() && ::SSL_session_reused(ssl_) != 1) {
      problem_ = {ErrorCode::kAuthFailed, "the TLS session does not use the group's key"};
      return Step::kFailed;
    }
    ::SSL_set_msg_callback(ssl_, &Callbacks::onMessage);
    if (!unsent()) return Step::kDone;
  } else if (why != SSL_ERROR_WANT_READ) {
    explain(reason);
    return Step::kFailed;
  }
  if (send_error == 0 || send_error == EAGAIN) return Step::kAgain;
  problem_ = {ErrorCode::kConnectFailed, errnoText(send_error)};
  return Step::kFailed;
}

void TlsConnection::explain(int reason) {
  const std::string text = takeOpensslError();
  if (bio_.ended()) {
    problem_ = {ErrorCode::kConnectFailed, "the connection was closed"};
  } else if (bio_.readError() != 0) {
    problem_ = {ErrorCode::kConnectFailed, errnoText(bio_.readError())};
  } else if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    problem_ = {ErrorCode::kAuthFailed,
                std::string("its certificate is not valid here: ") +
                    ::X509_verify_cert_error_string(::SSL_get_verify_result(ssl_))};
  } else if (context_->certificates() && aboutCertificate(reason)) {
    problem_ = {ErrorCode::kAuthFailed, "a certificate was not accepted: " + text};
  } else {
    problem_ = {ErrorCode::kConnectFailed, text};
  }
}

std::vector<std::string> TlsConnection::peerNames() const {
  const X509* const certificate = ::SSL_get0_peer_certificate(ssl_);
  return certificate == nullptr ? std::vector<std::string>() : namesOf(*certificate);
}

std::optional<TlsConnection::ChannelBinding> TlsConnection::channelBinding() const {
  constexpr std::string_view kLabel = "EXPORTER-Channel-Binding";
  ChannelBinding binding{};
  if (::SSL_export_keying_material(ssl_, binding.data(), binding.size(), kLabel.data(),
                                   kLabel.size(), nullptr, 0, 0) != 1) {
    return std::nullopt;
  }
  return binding;
}

void TlsConnection::readAhead() { ::SSL_set_read_ahead(ssl_, 1); }

// --- records ---

int TlsConnection::read(std::byte* into, std::size_t room, std::size_t& count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bio_.drained() && ::SSL_has_pending(ssl_) == 0) return EAGAIN;
  bio_.setWrites(false);  // an alert about what came: the connection ends anyway
  ::ERR_clear_error();
  const int read = ::SSL_read_ex(ssl_, into, room, &count);
  const int why = read == 1 ? SSL_ERROR_NONE : ::SSL_get_error(ssl_, read);
  bio_.setWrites(true);
  if (controls_ > kMostControls) {
    problem_ = {ErrorCode::kConnectFailed, "too many TLS messages without data"};
    return EPROTO;
  }
  if (why == SSL_ERROR_NONE) {
    bytes_since_ += count;
    if (bytes_since_ >= kControlsPerBytes) {
      bytes_since_ = 0;
      controls_ = 0;
    }
    return 0;
  }
  if (why == SSL_ERROR_WANT_READ) return EAGAIN;
  const int reason = ERR_GET_REASON(::ERR_peek_error());
  explain(reason);
  if (bio_.ended()) return ENODATA;
  if (bio_.readError() != 0) return bio_.readError();
  return reason >= SSL_AD_REASON_OFFSET ? EPROTO : EBADMSG;  // the peer's alert is no damage
}

// Within SSL_read_ex, which goes on by itself until data come. Where the peer has ended the stream
// it reads no further than the next record.
void TlsConnection::onControl() {
  if (++controls_ > kMostControls)
    ::SSL_set_shutdown(ssl_, ::SSL_get_shutdown(ssl_) | SSL_RECEIVED_SHUTDOWN);
}

bool TlsConnection::write(const std::byte* bytes, std::size_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ::ERR_clear_error();
  bytes_with_key_ += count;
  bool made = true;
  if (bytes_with_key_ > bytes_per_key_) {
    bytes_with_key_ = count;
    made = ::SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1;
  }
  std::size_t written = 0;
  if (::SSL_write_ex(ssl_, bytes, count, &written) != 1 || written != count) made = false;
  if (!made) ::ERR_clear_error();
  return made;
}

}  // namespace weft::transport
