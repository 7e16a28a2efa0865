#include "transport/tls/tls_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <vector>

#include "transport/base/os/secret_file.h"
#include "transport/tls/certificate_names.h"
#include "transport/tls/openssl_error.h"
#include "transport/tls/tls_connection.h"

namespace weft::transport {
namespace {

// A pre-shared key belongs to one hash function, SHA-256.
constexpr const char* kCiphersWithKey = "TLS_AES_128_GCM_SHA256";
constexpr const char* kCiphers = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384";

int noPassphrase(char*, int, int, void*) { return -1; }

SSL_CTX* newContext(const char* ciphers) {
  SSL_CTX* const context = ::SSL_CTX_new(::TLS_method());
  if (context == nullptr) return nullptr;
  ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  ::SSL_CTX_set_default_read_buffer_len(context, TlsConnection::kReadAtOnce);
  ::SSL_CTX_set_default_passwd_cb(context, &noPassphrase);  // else it asks the terminal
  const bool right = ::SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                     ::SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
                     ::SSL_CTX_set_ciphersuites(context, ciphers) == 1 &&
                     ::SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1 &&
                     ::SSL_CTX_set_num_tickets(context, 0) == 1;
  if (right) return context;
  ::SSL_CTX_free(context);
  return nullptr;
}

Error noTls() { return {ErrorCode::kSystem, "OpenSSL cannot do TLS 1.3: " + takeOpensslError()}; }

Error cannotUse(const char* variable, const std::string& file) {
  return invalidArgument(std::string("cannot use the file of ") + variable + ", '" + file +
                         "': " + takeOpensslError() + "; it must be PEM, and fit the other two");
}

// OpenSSL opens a file as it is, and would wait for somebody to write to a fifo, with no end.
Error checkFile(const char* variable, const std::string& file, bool secret = false) {
  const std::string what = std::string("the file of ") + variable + ", '" + file + "',";
  const Result<UniqueFd> opened = openRegularFile(file, what);
  if (!opened.ok()) return opened.error();
  return secret ? checkSecret(opened.value(), what, file) : Error::ok();
}

}  // namespace

Error certificateFilesMissing() {
  return invalidArgument(
      "certificates need all three of WEFT_TLS_CERT, WEFT_TLS_KEY and WEFT_TLS_CA; set all or "
      "none");
}

TlsContext::TlsContext(ssl_ctx_st* context, bool certificates)
    : context_(context), certificates_(certificates) {}

TlsContext::~TlsContext() { ::SSL_CTX_free(context_); }

Result<std::shared_ptr<const TlsContext>> TlsContext::withKey() {
  ::ERR_clear_error();
  SSL_CTX* const context = newContext(kCiphersWithKey);
  if (context == nullptr) return noTls();
  std::shared_ptr<const TlsContext> made(new TlsContext(context, false));
  // An acceptor that does without the pre-shared key would have to show a certificate: there is no
  // authority that a dialler trusts.
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  TlsConnection::usePresharedKeys(context);
  return made;
}

Result<std::shared_ptr<const TlsContext>> TlsContext::withCertificates(const TlsFiles& files) {
  if (!files.all()) return certificateFilesMissing();
  if (Error error = checkFile("WEFT_TLS_CERT", files.certificate)) return error;
  if (Error error = checkFile("WEFT_TLS_KEY", files.key, true)) return error;
  if (Error error = checkFile("WEFT_TLS_CA", files.authorities)) return error;
  ::ERR_clear_error();
  SSL_CTX* const context = newContext(kCiphers);
  if (context == nullptr) return noTls();
  std::shared_ptr<const TlsContext> made(new TlsContext(context, true));
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  if (::SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1)
    return cannotUse("WEFT_TLS_CERT", files.certificate);
  if (::SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      ::SSL_CTX_check_private_key(context) != 1) {
    return cannotUse("WEFT_TLS_KEY", files.key);
  }
  if (::SSL_CTX_load_verify_file(context, files.authorities.c_str()) != 1)
    return cannotUse("WEFT_TLS_CA", files.authorities);
  return made;
}

bool TlsContext::isFor(const std::string& name) const {
  const X509* const own = ::SSL_CTX_get0_certificate(context_);
  if (own == nullptr) return false;
  const std::vector<std::string> names = namesOf(*own);
  return std::find(names.begin(), names.end(), name) != names.end();
}

Result<std::string> certificateName(const std::string& file) {
  if (Error error = checkFile("WEFT_TLS_CERT", file)) return error;
  ::ERR_clear_error();
  BIO* const in = ::BIO_new_file(file.c_str(), "r");
  X509* const certificate =
      in == nullptr ? nullptr : ::PEM_read_bio_X509(in, nullptr, &noPassphrase, nullptr);
  ::BIO_free(in);
  if (certificate == nullptr) return cannotUse("WEFT_TLS_CERT", file);
  const std::vector<std::string> names = namesOf(*certificate);
  ::X509_free(certificate);
  if (!names.empty()) return names.front();
  return invalidArgument("the certificate of WEFT_TLS_CERT, '" + file +
                         "', has no name: neither a DNS name nor a common name");
}

}  // namespace weft::transport
