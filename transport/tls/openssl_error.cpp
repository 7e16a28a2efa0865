#include "transport/tls/openssl_error.h"

#include <openssl/err.h>

namespace weft::transport {

std::string takeOpensslError() {
  const unsigned long code = ::ERR_get_error();  // NOLINT(google-runtime-int): OpenSSL's type
  ::ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ::ERR_reason_error_string(code);
  return reason == nullptr ? "OpenSSL gives no reason" : reason;
}

}  // namespace weft::transport
