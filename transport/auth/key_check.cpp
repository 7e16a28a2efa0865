#include "transport/auth/key_check.h"

#include "transport/auth/digest.h"
#include "transport/base/secure_random.h"

namespace weft::transport {

std::string keyCheck(const AuthKey& key, std::string_view group_id) {
  std::string text = "weft: the same key in group ";
  text += group_id;
  return toHex(hmacSha256(key, std::as_bytes(std::span(text))));
}

}  // namespace weft::transport
