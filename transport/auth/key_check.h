// What two processes compare to learn whether they hold the same key, before either connects.
//
// HMAC-SHA-256(key, label and group id). A key of 32 random bytes cannot be found from it, and the
// group id, random for each group, keeps it from telling that two groups share a key. The label and
// the length keep it apart from the handshake's proofs: it opens no connection.
#pragma once

#include <string>
#include <string_view>

#include "transport/auth/auth_key.h"

namespace weft::transport {

// 64 hexadecimal digits. Any thread.
std::string keyCheck(const AuthKey& key, std::string_view group_id);

}  // namespace weft::transport
