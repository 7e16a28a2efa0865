// SHA-256 and HMAC-SHA-256. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "transport/auth/auth_key.h"

namespace weft::transport {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::string_view text);
Digest hmacSha256(const AuthKey& key, std::span<const std::byte> text);
// Takes the same time wherever they differ.
bool sameDigest(const Digest& one, const Digest& other) noexcept;

}  // namespace weft::transport
