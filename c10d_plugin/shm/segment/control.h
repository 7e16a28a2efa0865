// The words that ranks share: a header for the group, a control block per rank. Plain lock-free
// atomics and bytes at computed places; each cache line has one writer, but for `sleepers`.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "c10d_plugin/shm/segment/call_record.h"
#include "c10d_plugin/shm/segment/layout.h"

namespace weft::collectives::shm {

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

struct Control {
  alignas(kCacheLine) Word progress;  // rounds this rank has ended; what others wait for
  alignas(kCacheLine) Word sleepers;  // others that sleep until it changes
  alignas(kCacheLine) Word presence;
  Word writing;                          // 1: this rank writes into others' heaps
  std::array<std::uint8_t, 16> process;  // which process; written before presence
  // Of the operation that begins in an even or odd round: others read one while the next is
  // written. Followed in memory by both records' size tables.
  alignas(kCacheLine) std::array<CallRecord, 2> records;
};

}  // namespace weft::collectives::shm
