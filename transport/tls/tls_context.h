// TlsContext: what all TLS connections of one endpoint share: TLS 1.3 only, no session tickets, no
// early data, (EC)DHE always. Two kinds:
//
//   withKey            each connection has a pre-shared key of its own, made from the group's key
//                      (TlsConnection); no certificates
//   withCertificates   both sides show one, signed by an authority of the CA file alone; names are
//                      the caller's to check (TlsConnection::peerNames)
//
// Threads: any; it does not change once it is made. Failure: an Error that names the file.
#pragma once

#include <memory>
#include <string>

#include "transport/base/error.h"

struct ssl_ctx_st;

namespace weft::transport {

// PEM files. A key that other users can read is refused.
struct TlsFiles {
  std::string certificate;  // with the chain up to an authority, if there is one between
  std::string key;          // without a passphrase
  std::string authorities;

  bool any() const { return !certificate.empty() || !key.empty() || !authorities.empty(); }
  bool all() const { return !certificate.empty() && !key.empty() && !authorities.empty(); }
};

// Some of the three are missing.
Error certificateFilesMissing();

class TlsContext {
 public:
  static Result<std::shared_ptr<const TlsContext>> withKey();
  static Result<std::shared_ptr<const TlsContext>> withCertificates(const TlsFiles& files);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  bool certificates() const noexcept { return certificates_; }
  // Whether the own certificate is for a worker of this name.
  bool isFor(const std::string& name) const;
  ssl_ctx_st* get() const noexcept { return context_; }

 private:
  TlsContext(ssl_ctx_st* context, bool certificates);

  ssl_ctx_st* const context_;
  const bool certificates_;
};

// The name that a certificate in a file is for: its first DNS name, else its common name.
Result<std::string> certificateName(const std::string& file);

}  // namespace weft::transport
