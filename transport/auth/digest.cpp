#include "transport/auth/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include "transport/base/check.h"

namespace weft::transport {
namespace {

const unsigned char* unsignedBytes(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

Digest sha256(std::span<const std::byte> bytes) {
  Digest digest{};
  ::SHA256(unsignedBytes(bytes), bytes.size(), digest.data());
  return digest;
}

Digest sha256(const std::string& text) { return sha256(std::as_bytes(std::span(text))); }

Digest hmacSha256(const AuthKey& key, std::span<const std::byte> text) {
  Digest mac{};
  unsigned length = 0;
  const unsigned char* const done =
      ::HMAC(EVP_sha256(), key.bytes().data(), static_cast<int>(key.bytes().size()),
             unsignedBytes(text), text.size(), mac.data(), &length);
  WEFT_CHECK(done != nullptr && length == mac.size(), "HMAC-SHA-256 is always there");
  return mac;
}

bool sameDigest(const Digest& one, const Digest& other) noexcept {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace weft::transport
