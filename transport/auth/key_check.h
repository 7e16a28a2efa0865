// A text by which two processes learn whether they hold the same key, before either connects.
//
// HMAC-SHA-256(key, label and group id). It does not reveal a key of 32 random bytes; the group id,
// random for each group, hides whether two groups share a key; the label and the length distinguish
// it from the handshake's proofs, so that it opens no connection.
#pragma once

#include <string>
#include <string_view>

#include "transport/auth/auth_key.h"

namespace weft::transport {

// 64 hexadecimal digits. Any thread.
std::string keyCheck(const AuthKey& key, std::string_view group_id);

}  // namespace weft::transport
