// CRC-32C (Castagnoli, RFC 3720 B.4), by the processor's instruction where it has one. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::transport {

// Continues `crc`, which is 0 at first: crc32c(crc32c(0, a), b) is that of a and b joined.
std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> bytes) noexcept;

// The same, and copies the bytes to `to` in one pass. The result is that of the bytes as they are
// in `to`, also while another thread changes `bytes`.
std::uint32_t crc32cAndCopy(std::uint32_t crc, std::byte* to,
                            std::span<const std::byte> bytes) noexcept;

// crc32c() without the instruction: for processors that lack it, and for tests.
std::uint32_t crc32cByTable(std::uint32_t crc, std::span<const std::byte> bytes) noexcept;

}  // namespace weft::transport
