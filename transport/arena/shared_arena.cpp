#include "transport/arena/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "transport/base/check.h"
#include "transport/base/os/secure_random.h"
#include "transport/base/os/system_error.h"
#include "transport/memory/pages.h"
#include "transport/memory/sealed_memory.h"

namespace weft::transport {
namespace {

constexpr std::uint64_t kChunk = kMemoryChunk;
constexpr std::size_t kLooksPerTake = 64;

WarmPool::Memory dataPart(int fd, std::byte* base, const ArenaOffer& offer) {
  WarmPool::Memory memory;
  memory.base = base + kArenaDataOffset;
  memory.bytes = offer.file_bytes - kArenaDataOffset;
  memory.fd = fd;
  memory.file_offset = kArenaDataOffset;
  return memory;
}

}  // namespace

Result<std::shared_ptr<SharedArena>> SharedArena::create(std::uint64_t data_bytes,
                                                         std::uint32_t slots) {
  ArenaOffer offer;
  offer.slot_count = std::clamp(slots, 1U, kArenaMaxSlots);
  offer.file_bytes = kArenaDataOffset + roundUp(std::max(data_bytes, kChunk), kChunk);
  std::array<std::uint8_t, sizeof(ArenaMagic)> random{};
  if (Error error = fillRandom(random)) return error;
  std::memcpy(offer.magic.data(), random.data(), random.size());

  Result<UniqueFd> fd =
      makeMemory("weft-arena", offer.file_bytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  if (!fd.ok()) return fd.error();
  void* const mapped =
      mapAligned(offer.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.value().get());
  if (mapped == MAP_FAILED) return systemError("mapping shared memory", errno);
  auto* const base = static_cast<std::byte*>(mapped);
  std::shared_ptr<SharedArena> arena(new SharedArena(std::move(fd).value(), base, offer));
  // A forked child has no use for it, and would keep it alive.
  ::madvise(base, offer.file_bytes, MADV_DONTFORK);
  // Magic and slots, which both sides touch at any time.
  if (Error error = obtainMemory(arena->fd(), 0, base, kArenaDataOffset)) return error;
  std::memcpy(base, offer.magic.data(), offer.magic.size());
  for (std::uint32_t i = 0; i < offer.slot_count; ++i)
    new (&arenaSlot(base, i)) ArenaSlot(kSlotFree);
  return arena;
}

SharedArena::SharedArena(UniqueFd fd, std::byte* base, const ArenaOffer& offer)
    : fd_(std::move(fd)),
      base_(base),
      offer_(offer),
      handed_over_(std::make_unique<std::atomic<bool>[]>(offer.slot_count)),
      pool_(dataPart(fd_.get(), base, offer)),
      free_slots_(offer.slot_count) {
  in_use_.reserve(offer.slot_count);  // a block that was taken finds room
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0U);
}

SharedArena::~SharedArena() {
  // In a forked child something else may be where it is mapped here.
  if (fork_guard_.inOwnProcess()) ::munmap(base_, offer_.file_bytes);
}

std::optional<ArenaDescriptor> SharedArena::take(std::size_t size) {
  std::optional<ArenaDescriptor> block = take(size, kLooksPerTake);
  if (block) return block;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (in_use_.size() <= kLooksPerTake) return std::nullopt;
  }
  return take(size, kArenaMaxSlots);
}

std::optional<ArenaDescriptor> SharedArena::take(std::size_t size, std::size_t looks) {
  std::uint32_t index = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    reclaim(looks);
    if (free_slots_.empty()) return std::nullopt;
    index = free_slots_.back();
    free_slots_.pop_back();
  }
  const std::optional<std::uint64_t> offset = pool_.takeRange(size);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!offset) {
    free_slots_.push_back(index);
    return std::nullopt;
  }
  in_use_.push_back({index, *offset, size});
  // The link carries the descriptor after this, and orders it.
  arenaSlot(base_, index).store(kSlotOffered, std::memory_order_release);
  return ArenaDescriptor{kArenaDataOffset + *offset, index, 0};
}

void SharedArena::handOver(const ArenaDescriptor& block) noexcept {
  handed_over_[block.slot].store(true, std::memory_order_release);
}

void SharedArena::withdraw(const ArenaDescriptor& block) noexcept {
  std::uint32_t state = kSlotOffered;
  arenaSlot(base_, block.slot).compare_exchange_strong(state, kSlotFree, std::memory_order_acq_rel);
}

void SharedArena::giveBack(const ArenaDescriptor& block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(in_use_.begin(), in_use_.end(),
                                  [&](const InUse& one) { return one.slot == block.slot; });
  WEFT_CHECK(found != in_use_.end() && found->offset + kArenaDataOffset == block.offset,
             "only blocks in use are given back");
  arenaSlot(base_, block.slot).store(kSlotFree, std::memory_order_relaxed);
  release(static_cast<std::size_t>(found - in_use_.begin()));
}

// With the lock. Looks at no more than `most` blocks: a receiver may hold thousands for long.
void SharedArena::reclaim(std::size_t most) {
  for (std::size_t looked = 0; looked < most && !in_use_.empty(); ++looked) {
    if (look_at_ >= in_use_.size()) {
      look_at_ = 0;
      if (looked >= in_use_.size()) return;
    }
    const std::uint32_t index = in_use_[look_at_].slot;
    // Acquire: what the receiver did with the bytes is over before they are written again.
    if (handed_over_[index].load(std::memory_order_acquire) &&
        arenaSlot(base_, index).load(std::memory_order_acquire) == kSlotFree) {
      release(look_at_);
    } else {
      ++look_at_;
    }
  }
}

void SharedArena::release(std::size_t index) {
  const InUse one = in_use_[index];
  in_use_[index] = in_use_.back();
  in_use_.pop_back();
  handed_over_[one.slot].store(false, std::memory_order_relaxed);
  pool_.giveRange(one.offset, one.size);
  free_slots_.push_back(one.slot);
}

void SharedArena::tick(std::chrono::steady_clock::time_point now) {
  // What was released is free to go.
  if (pool_.heldBytes() > WarmPool::kKeep) static_cast<void>(blocksInUse());
  pool_.tick(now);
}

std::size_t SharedArena::blocksInUse() {
  const std::lock_guard<std::mutex> lock(mutex_);
  reclaim(in_use_.size());
  return in_use_.size();
}

}  // namespace weft::transport
