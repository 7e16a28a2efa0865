// The group's secret, in memory that is wiped when it goes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "transport/base/error.h"

namespace weft::transport {

class AuthKey {
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
  // A file that holds fromHex's text. Refused: unreadable, malformed, or
  // readable or writable by others than its owner's user and group.
  static Result<AuthKey> fromFile(const std::string& path);

  bool valid() const noexcept;
  std::string toHex() const;
  const std::array<std::uint8_t, kBytes>& bytes() const noexcept { return bytes_; }

 private:
  std::array<std::uint8_t, kBytes> bytes_{};
};

}  // namespace weft::transport
