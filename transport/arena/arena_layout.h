// What the two ends of a shared arena agree on: the layout of its memory, the offer that
// announces it and the descriptors that point into it. docs/design/wire_format.md is for people.
//
//   0        magic (16 bytes, random)
//   64       slots: slot_count x u32, one per block in use
//   2 MiB    blocks, to the end of the file
//
// Sender and receiver run on one machine, but what goes over the link is little-endian all the
// same.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include "transport/base/bytes.h"

namespace weft::transport {

inline constexpr std::uint64_t kArenaSlotsOffset = 64;
inline constexpr std::uint64_t kArenaDataOffset = std::uint64_t{2} << 20;  // a huge page's border
inline constexpr std::uint32_t kArenaMaxSlots = 1U << 16;
inline constexpr std::uint64_t kArenaAlignment = 64;  // of blocks; what vector instructions like
static_assert(kArenaSlotsOffset + std::uint64_t{4} * kArenaMaxSlots <= kArenaDataOffset);

// A slot is the only word that both sides write. The sender offers, the receiver takes once and
// frees; the sender then reuses the block. Neither trusts it further.
using ArenaSlot = std::atomic<std::uint32_t>;
inline constexpr std::uint32_t kSlotFree = 0;
inline constexpr std::uint32_t kSlotOffered = 1;
inline constexpr std::uint32_t kSlotTaken = 2;
static_assert(ArenaSlot::is_always_lock_free && sizeof(ArenaSlot) == 4);
inline ArenaSlot& arenaSlot(std::byte* base, std::uint32_t index) noexcept {
  return *std::launder(
      reinterpret_cast<ArenaSlot*>(base + kArenaSlotsOffset + std::size_t{4} * index));
}

using ArenaMagic = std::array<std::byte, 16>;

// The body of an arena-offer frame; the descriptor of the memory travels beside it.
struct ArenaOffer {
  static constexpr std::size_t kBytes = 32;
  std::uint64_t file_bytes = 0;
  std::uint32_t slot_count = 0;
  ArenaMagic magic{};

  void encode(std::byte* out) const noexcept {
    storeLittle<std::uint64_t>(out, file_bytes);
    storeLittle<std::uint32_t>(out + 8, slot_count);
    storeLittle<std::uint32_t>(out + 12, 0);
    std::memcpy(out + 16, magic.data(), magic.size());
  }
  static ArenaOffer decode(std::span<const std::byte, kBytes> in) noexcept {
    ArenaOffer offer;
    offer.file_bytes = loadLittle<std::uint64_t>(in.data());
    offer.slot_count = loadLittle<std::uint32_t>(in.data() + 8);
    std::memcpy(offer.magic.data(), in.data() + 16, offer.magic.size());
    return offer;
  }
};

// Where one buffer of a frame is: in the arena, or, exported, in a file of its own. Its length is
// in the frame's table.
struct ArenaDescriptor {
  static constexpr std::size_t kBytes = 16;
  std::uint64_t offset = 0;    // from the start of the file
  std::uint32_t slot = 0;      // exported: which of the frame's file descriptors, from 0
  std::uint32_t reserved = 0;  // must be 0

  bool operator==(const ArenaDescriptor&) const = default;
  void encode(std::byte* out) const noexcept {
    storeLittle<std::uint64_t>(out, offset);
    storeLittle<std::uint32_t>(out + 8, slot);
    storeLittle<std::uint32_t>(out + 12, reserved);
  }
  static ArenaDescriptor decode(const std::byte* in) noexcept {
    return {loadLittle<std::uint64_t>(in), loadLittle<std::uint32_t>(in + 8),
            loadLittle<std::uint32_t>(in + 12)};
  }
};

}  // namespace weft::transport
