// The records of a CheckedStream.
//
//   head    = u32 bytes of the payload | u32 CRC-32C(seed, bytes, number of the record)
//   record  = head | payload | u32 CRC-32C(what the head's covers, payload)
//
// The number, which is not sent, finds records that were dropped, repeated or reordered. The
// checksum comes last, so that the writer can make and send a long record piece by piece, while
// each is in the cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/base/bytes.h"
#include "transport/checksum/crc32c.h"

namespace weft::transport::record {

inline constexpr std::size_t kHeadBytes = 8;
inline constexpr std::size_t kTailBytes = 4;
inline constexpr std::size_t kMaxPayload = std::size_t{1} << 20;
// A buffer of this size or more has a record of its own, which is read to its place. Smaller ones
// share a record with their neighbours, and are copied when they arrive.
inline constexpr std::size_t kLarge = std::size_t{16} << 10;
inline constexpr std::size_t kMaxShared = std::size_t{128} << 10;  // such a record

// What a record's checksum begins with.
inline std::uint32_t headChecksum(std::uint32_t seed, std::uint64_t number,
                                  std::uint32_t bytes) noexcept {
  std::array<std::byte, 16> head;
  storeLittle(head.data(), seed);
  storeLittle(head.data() + 4, bytes);
  storeLittle(head.data() + 8, number);
  return crc32c(0, head);
}

}  // namespace weft::transport::record
