#include "transport/auth/key_check.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>

#include "transport/base/check.h"
#include "transport/base/secure_random.h"

namespace weft::transport {

std::string keyCheck(const AuthKey& key, std::string_view group_id) {
  std::string text = "weft: the same key in group ";
  text += group_id;
  std::array<std::uint8_t, 32> mac{};
  unsigned length = 0;
  const unsigned char* done =
      ::HMAC(EVP_sha256(), key.bytes().data(), static_cast<int>(AuthKey::kBytes),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &length);
  WEFT_CHECK(done != nullptr && length == mac.size(), "HMAC-SHA-256 is always there");
  return toHex(mac);
}

}  // namespace weft::transport
