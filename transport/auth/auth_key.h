// The key by which the members of a group know each other, in memory that is wiped when it goes.
// They share it through a Store, with the group's id, or have it from a file. A key in the Store is
// as safe from strangers as the Store.
//
// Threads: any.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "transport/base/api.h"
#include "transport/base/error.h"

namespace weft::transport {

class WEFT_API AuthKey {
 public:
  static constexpr std::size_t kBytes = 32;

  AuthKey() = default;  // all zero: valid() is false, an Endpoint refuses it
  ~AuthKey();
  AuthKey(const AuthKey&) = default;
  AuthKey& operator=(const AuthKey&) = default;

  // From the operating system's random source.
  static Result<AuthKey> random();
  // Exactly 64 hexadecimal digits, surrounding white space allowed.
  static Result<AuthKey> fromHex(std::string_view text);
  // A file that holds fromHex's text. Refused: unreadable, malformed, open to every user, writable
  // by its group, or of a user who is neither this one nor root.
  static Result<AuthKey> fromFile(const std::string& path);

  bool valid() const noexcept;
  std::string toHex() const;
  const std::array<std::uint8_t, kBytes>& bytes() const noexcept { return bytes_; }

 private:
  std::array<std::uint8_t, kBytes> bytes_{};
};

// A text by which two processes learn whether they hold the same key, before either connects: 64
// hexadecimal digits. HMAC-SHA-256(key, label and group id). It does not reveal a key of 32 random
// bytes; the group id, random for each group, hides whether two groups share a key; the label and
// the length distinguish it from the handshake's proofs, so that it opens no connection.
std::string keyCheck(const AuthKey& key, std::string_view group_id);

struct GroupSecret {
  std::string group_id;
  AuthKey key;
  bool from_file = false;  // the key is that of a file instead of the Store's
};

// A new secret as text, for the Store.
Result<std::string> newSecretText();
// kProtocol: it is not such a text.
Result<GroupSecret> parseSecret(std::string_view text);

}  // namespace weft::transport
