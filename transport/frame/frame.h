// The fixed head of a frame, and the entries of its buffer table. docs/design/wire_format.md is
// the description for people.
//
//   head (40 bytes) | table: buffer_count x u64 | descriptors: 16 bytes for each buffer in
//   shared or exported memory | header bytes | the other buffers, one after another
//
// The last part of a split frame's buffers comes over the link's bulk connection instead
// (BulkConnection).
//
// All integers are little-endian. Decoding is total: any 40 bytes give a head or an Error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/base/error.h"
#include "transport/options.h"

namespace weft::transport {

enum class FrameKind : std::uint8_t {
  kData = 1,       // a message
  kHeartbeat = 2,  // "still here": no table, no header, no buffers
  kGoodbye = 3,    // the last frame of a sender that shuts down in order
  // Shared memory for large buffers, over Unix sockets only. An offer's header is an ArenaOffer,
  // and the memory's descriptor travels with its first byte.
  kArenaOffer = 4,
  kArenaAccept = 5,
  kArenaRefuse = 6,
  kAck = 7,  // a head alone, for its ack
};

struct FrameHead {
  static constexpr std::size_t kBytes = 40;
  static constexpr std::uint32_t kMagic = 0x54464557;  // "WEFT" in memory
  static constexpr std::uint8_t kVersion = 1;
  // Flags of data.
  static constexpr std::uint16_t kAckNow = 1;  // the sender waits for its ack
  static constexpr std::uint16_t kSplit =
      2;  // bulkShare() of its bytes come over the bulk connection

  FrameKind kind = FrameKind::kData;
  std::uint16_t flags = 0;
  std::uint64_t sequence = 0;  // data: counts from 1; others: that of the last data frame
  std::uint64_t ack = 0;       // the last data frame received from the other side
  std::uint32_t header_bytes = 0;
  std::uint32_t buffer_count = 0;
  std::uint64_t buffer_bytes = 0;  // sum of the table's lengths, wherever the bytes are
};

using FrameHeadBytes = std::array<std::byte, FrameHead::kBytes>;

void encodeFrameHead(const FrameHead& head, std::byte* out) noexcept;

// kLimitExceeded when the message is longer than max_message_bytes.
Error checkSize(const FrameHead& head, const Limits& limits);

// Checks everything that the head alone can tell, against `limits`; checkSize() unless such
// messages are skipped.
Result<FrameHead> decodeFrameHead(std::span<const std::byte, FrameHead::kBytes> bytes,
                                  const Limits& limits);

// How many of the buffer bytes that a split frame carries come over the bulk connection: the last
// half, in whole pages, which both sides copy faster.
inline constexpr std::uint64_t kBulkUnit = 4096;
constexpr std::uint64_t bulkShare(std::uint64_t carried) noexcept {
  return carried / 2 / kBulkUnit * kBulkUnit;
}

// A table entry: the low 56 bits are the length, the top byte says where the bytes are.
// 0: in this frame. 1: in the arena that the sender offered. 2: in memory whose file descriptor
// travels with the frame (ExportedBlock). Others are refused.
constexpr unsigned kBufferPlaceShift = 56;
constexpr std::uint64_t kBufferLengthMask = (std::uint64_t{1} << kBufferPlaceShift) - 1;
constexpr std::uint64_t kBufferInArena = std::uint64_t{1} << kBufferPlaceShift;
constexpr std::uint64_t kBufferExported = std::uint64_t{2} << kBufferPlaceShift;

}  // namespace weft::transport
