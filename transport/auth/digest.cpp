#include "transport/auth/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include "transport/base/check.h"

namespace weft::transport {

Digest sha256(std::string_view text) {
  Digest digest{};
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

Digest hmacSha256(const AuthKey& key, std::span<const std::byte> text) {
  Digest mac{};
  unsigned length = 0;
  const unsigned char* const done =
      ::HMAC(EVP_sha256(), key.bytes().data(), static_cast<int>(key.bytes().size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &length);
  WEFT_CHECK(done != nullptr && length == mac.size(), "HMAC-SHA-256 is always there");
  return mac;
}

bool sameDigest(const Digest& one, const Digest& other) noexcept {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace weft::transport
