#include "transport/io/crc32c.h"

#include <array>
#include <cstring>

#if defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define WEFT_CRC_TARGET __attribute__((target("+crc")))
#elif defined(__x86_64__)
#include <nmmintrin.h>
#define WEFT_CRC_TARGET __attribute__((target("sse4.2")))
#endif

namespace weft::transport {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // bits reversed
using Table = std::array<std::uint32_t, 256>;

constexpr Table makeTable() {
  Table table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}
constexpr Table kTable = makeTable();

constexpr std::uint32_t addByte(std::uint32_t state, std::uint8_t byte) {
  return kTable[(state ^ byte) & 0xFF] ^ (state >> 8);
}

}  // namespace

std::uint32_t crc32cByTable(std::uint32_t crc, std::span<const std::byte> bytes) noexcept {
  std::uint32_t state = ~crc;
  for (const std::byte byte : bytes)
    state = addByte(state, static_cast<std::uint8_t>(byte));
  return ~state;
}

#if defined(WEFT_CRC_TARGET)

namespace {

#if defined(__aarch64__)
WEFT_CRC_TARGET std::uint64_t addWord(std::uint64_t state, std::uint64_t word) {
  return __crc32cd(static_cast<std::uint32_t>(state), word);
}
bool hasInstruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
WEFT_CRC_TARGET inline std::uint64_t addWord(std::uint64_t state, std::uint64_t word) {
  return _mm_crc32_u64(state, word);
}
bool hasInstruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#endif

// The instruction takes three cycles and may begin each cycle: three blocks are checked at once.
constexpr std::size_t kBlock = 4096;

// The states after kBlock zero bytes, by each byte of the state before. A CRC is linear.
using Advance = std::array<Table, 4>;

Advance makeAdvance() {
  std::array<std::uint32_t, 32> by_bit{};
  for (std::size_t bit = 0; bit < by_bit.size(); ++bit) {
    std::uint32_t state = std::uint32_t{1} << bit;
    for (std::size_t i = 0; i < kBlock; ++i)
      state = addByte(state, 0);
    by_bit[bit] = state;
  }
  Advance advance{};
  for (std::size_t place = 0; place < 4; ++place) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      for (std::size_t bit = 0; bit < 8; ++bit)
        if ((byte >> bit & 1) != 0) advance[place][byte] ^= by_bit[8 * place + bit];
    }
  }
  return advance;
}

std::uint64_t overBlock(const Advance& advance, std::uint64_t state) {
  return advance[0][state & 0xFF] ^ advance[1][state >> 8 & 0xFF] ^ advance[2][state >> 16 & 0xFF] ^
         advance[3][state >> 24 & 0xFF];
}

std::uint64_t wordAt(const std::byte* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Each word is read once, so that the checksum is that of what was copied.
template <bool kCopies>
WEFT_CRC_TARGET std::uint64_t take(std::uint64_t state, const std::byte* from,
                                   [[maybe_unused]] std::byte* to) {
  const std::uint64_t word = wordAt(from);
  if constexpr (kCopies) std::memcpy(to, &word, sizeof(word));
  return addWord(state, word);
}

template <bool kCopies>
WEFT_CRC_TARGET std::uint32_t byInstruction(std::uint32_t crc, std::span<const std::byte> bytes,
                                            std::byte* to) {
  static const Advance advance = makeAdvance();
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  constexpr std::size_t kCopied = kCopies ? 1 : 0;  // `to` is null where nothing is copied
  const std::byte* from = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t state = static_cast<std::uint32_t>(~crc);
  for (; left >= 3 * kBlock; from += 3 * kBlock, to += kCopied * 3 * kBlock, left -= 3 * kBlock) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < kBlock; i += kWord) {
      state = take<kCopies>(state, from + i, to + kCopied * i);
      second = take<kCopies>(second, from + kBlock + i, to + kCopied * (kBlock + i));
      third = take<kCopies>(third, from + 2 * kBlock + i, to + kCopied * (2 * kBlock + i));
    }
    state = overBlock(advance, overBlock(advance, state) ^ second) ^ third;
  }
  for (; left >= kWord; from += kWord, to += kCopied * kWord, left -= kWord)
    state = take<kCopies>(state, from, to);
  auto rest = static_cast<std::uint32_t>(state);
  for (; left > 0; ++from, to += kCopied, --left) {
    const std::byte byte = *from;
    if constexpr (kCopies) *to = byte;
    rest = addByte(rest, static_cast<std::uint8_t>(byte));
  }
  return ~rest;
}

bool instruction() {
  static const bool has = hasInstruction();
  return has;
}

}  // namespace

std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> bytes) noexcept {
  return instruction() ? byInstruction<false>(crc, bytes, nullptr) : crc32cByTable(crc, bytes);
}

std::uint32_t crc32cAndCopy(std::uint32_t crc, std::byte* to,
                            std::span<const std::byte> bytes) noexcept {
  if (instruction()) return byInstruction<true>(crc, bytes, to);
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  return crc32cByTable(crc, {to, bytes.size()});
}

#else

std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> bytes) noexcept {
  return crc32cByTable(crc, bytes);
}

std::uint32_t crc32cAndCopy(std::uint32_t crc, std::byte* to,
                            std::span<const std::byte> bytes) noexcept {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  return crc32cByTable(crc, {to, bytes.size()});
}

#endif

}  // namespace weft::transport
