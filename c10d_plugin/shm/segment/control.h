// The words that ranks share: a header for the group, a control block per rank. Plain lock-free
// atomics and bytes at computed places; each cache line has one writer, but for `sleepers`.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "c10d_plugin/core/op_fingerprint.h"

namespace weft::collectives::shm {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kPage = 4096;

using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 4, "futexes are 32-bit words");

using Magic = std::array<std::uint8_t, 16>;

// Why the group ended; the first reason stays.
struct FailureRecord {
  static constexpr std::uint32_t kNone = 0;
  static constexpr std::uint32_t kBeingWritten = 1;
  static constexpr std::uint32_t kWritten = 2;
  static constexpr std::size_t kMaxText = 1000;

  Word state;
  std::uint32_t code;
  std::uint32_t length;
  std::array<char, kMaxText> text;
};

struct Header {
  Magic magic;
  alignas(kCacheLine) FailureRecord failure;
};
static_assert(sizeof(Header) <= kPage);

enum class Presence : std::uint32_t { kNotYet, kHere, kLeft };

// What a rank called, for the others to compare. Fields, not a hash, so that an error can name both
// sides.
struct CallRecord {
  OpFingerprint op;
  SizesDigest sizes;    // the size tables that must be equal on all ranks
  bool direct = false;  // this rank's data are in its heap and are to be used there
};

// A rank's parts of the operation, by rank: what it sends, what it expects; and the offsets in its
// heap of the data that it offers there, by part.
enum class SizeTable : std::uint8_t { kSent, kExpected, kOffsets };
inline constexpr unsigned kSizeTables = 3;

struct Control {
  alignas(kCacheLine) Word progress;  // steps this rank has ended; what others wait for
  alignas(kCacheLine) Word sleepers;  // others that sleep until it changes
  alignas(kCacheLine) Word presence;
  Word writing;                          // 1: this rank writes into others' heaps
  std::array<std::uint8_t, 16> process;  // which process; written before presence
  // The call that began in an even step, and the one that began in an odd step: others may read one
  // while this rank writes the next.
  // Both records' size tables follow in memory.
  alignas(kCacheLine) std::array<CallRecord, 2> records;
};

}  // namespace weft::collectives::shm
