// CRC-32C (Castagnoli, RFC 3720 B.4), by ISA-L: the fastest way that the processor has. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::transport {

// Continues `crc`, which is 0 at first: crc32c(crc32c(0, a), b) is that of a and b joined.
std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> bytes) noexcept;

// The same, and copies the bytes to `to`. The result is that of the bytes as they are in `to`, also
// while another thread changes `bytes`.
std::uint32_t crc32cAndCopy(std::uint32_t crc, std::byte* to,
                            std::span<const std::byte> bytes) noexcept;

}  // namespace weft::transport
