#include "transport/arena/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "transport/base/check.h"
#include "transport/base/secure_random.h"
#include "transport/base/system_error.h"
#include "transport/memory/huge_pages.h"
#include "transport/memory/pages.h"
#include "transport/memory/sealed_memory.h"

namespace weft::transport {
namespace {

constexpr std::uint64_t kChunk = kMemoryChunk;
constexpr std::uint64_t kObtainAtOnce = std::uint64_t{16}
                                        << 20;  // a signal repeats no more than this
constexpr std::size_t kLooksPerTake = 64;

}  // namespace

Result<std::shared_ptr<SharedArena>> SharedArena::create(std::uint64_t data_bytes,
                                                         std::uint32_t slots) {
  ArenaOffer offer;
  offer.slot_count = std::clamp(slots, 1U, kArenaMaxSlots);
  offer.file_bytes = kArenaDataOffset + roundUp(std::max(data_bytes, kChunk), kChunk);
  std::array<std::uint8_t, sizeof(ArenaMagic)> random{};
  if (Error error = fillRandom(random)) return error;
  std::memcpy(offer.magic.data(), random.data(), random.size());

  Result<UniqueFd> memory = makeMemory("weft-arena", offer.file_bytes);
  if (!memory.ok()) return memory.error();
  UniqueFd fd = std::move(memory).value();
  // The first chunk holds magic and slots, which both sides touch at any time.
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(kArenaDataOffset)) != 0) {
    return systemError("obtaining shared memory", errno);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return systemError("sealing shared memory", errno);
  }
  void* base = mapAligned(offer.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get());
  if (base == MAP_FAILED) return systemError("mapping shared memory", errno);
  // A forked child has no use for it, and would keep it alive.
  ::madvise(base, offer.file_bytes, MADV_DONTFORK);
  std::memcpy(base, offer.magic.data(), offer.magic.size());
  return std::shared_ptr<SharedArena>(
      new SharedArena(std::move(fd), static_cast<std::byte*>(base), offer));
}

SharedArena::SharedArena(UniqueFd fd, std::byte* base, ArenaOffer offer)
    : fd_(std::move(fd)),
      base_(base),
      offer_(offer),
      chunk_count_((offer.file_bytes - kArenaDataOffset) / kChunk),
      obtained_(std::make_unique<std::atomic<bool>[]>(chunk_count_)),
      handed_over_(std::make_unique<std::atomic<bool>[]>(offer.slot_count)),
      allocator_(offer.file_bytes - kArenaDataOffset) {
  free_slots_.reserve(offer_.slot_count);
  for (std::uint32_t i = offer_.slot_count; i > 0; --i) {
    new (base_ + kArenaSlotsOffset + std::size_t{4} * (i - 1)) ArenaSlot(kSlotFree);
    free_slots_.push_back(i - 1);
  }
}

SharedArena::~SharedArena() {
  // In a forked child something else may lie where it is mapped here.
  if (fork_guard_.inOwnProcess()) ::munmap(base_, offer_.file_bytes);
}

ArenaSlot& SharedArena::slot(std::uint32_t index) const noexcept {
  return *std::launder(
      reinterpret_cast<ArenaSlot*>(base_ + kArenaSlotsOffset + std::size_t{4} * index));
}

std::optional<SharedArena::Block> SharedArena::take(std::size_t size) {
  Block block;
  std::uint64_t offset = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    reclaim(kLooksPerTake);
    std::optional<std::uint64_t> found = takeLocked(size);
    if (!found && in_use_.size() > kLooksPerTake) {
      reclaim(in_use_.size());
      found = takeLocked(size);
    }
    if (!found) return std::nullopt;
    offset = *found;
    block.where.slot = in_use_.back().slot;
  }
  block.where.offset = kArenaDataOffset + offset;
  block.data = base_ + block.where.offset;
  if (!obtain(offset, size)) {
    giveBack(block.where);
    return std::nullopt;
  }
  return block;
}

std::optional<std::uint64_t> SharedArena::takeLocked(std::size_t size) {
  if (free_slots_.empty()) return std::nullopt;
  const std::optional<std::uint64_t> offset = allocator_.take(size);
  if (!offset) return std::nullopt;
  const std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  in_use_.push_back({index, *offset, size});
  // The link carries the descriptor after this, and orders it.
  slot(index).store(kSlotOffered, std::memory_order_release);
  return offset;
}

void SharedArena::handOver(const ArenaDescriptor& block) noexcept {
  handed_over_[block.slot].store(true, std::memory_order_release);
}

void SharedArena::withdraw(const ArenaDescriptor& block) noexcept {
  std::uint32_t state = kSlotOffered;
  slot(block.slot).compare_exchange_strong(state, kSlotFree, std::memory_order_acq_rel);
}

void SharedArena::giveBack(const ArenaDescriptor& block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(in_use_.begin(), in_use_.end(),
                                  [&](const InUse& one) { return one.slot == block.slot; });
  WEFT_CHECK(found != in_use_.end() && found->offset + kArenaDataOffset == block.offset,
             "only blocks in use are given back");
  slot(block.slot).store(kSlotFree, std::memory_order_relaxed);
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
        slot(index).load(std::memory_order_acquire) == kSlotFree) {
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
  allocator_.give(one.offset, one.size);
  free_slots_.push_back(one.slot);
}

// Without the lock: the range is ours, so nobody takes its memory away. Two threads may obtain a
// chunk that they share; the second time costs little.
bool SharedArena::obtain(std::uint64_t offset, std::uint64_t size) {
  const std::size_t end = static_cast<std::size_t>(roundUp(offset + size, kChunk) / kChunk);
  std::size_t first = static_cast<std::size_t>(offset / kChunk);
  while (first < end) {
    if (obtained_[first].load(std::memory_order_acquire)) {
      ++first;
      continue;
    }
    std::size_t last = first + 1;
    while (last < end && (last - first) * kChunk < kObtainAtOnce &&
           !obtained_[last].load(std::memory_order_acquire)) {
      ++last;
    }
    const std::uint64_t at = kArenaDataOffset + first * kChunk;
    const std::uint64_t bytes = (last - first) * kChunk;
    makeHuge(base_ + at, bytes);
    int result = 0;
    do {
      result = ::fallocate(fd_.get(), 0, static_cast<off_t>(at), static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result != 0) return false;
    // One call instead of a page fault for each 4 KiB; older kernels don't know it.
    ::madvise(base_ + at, bytes, MADV_POPULATE_WRITE);
    for (; first < last; ++first) {
      if (!obtained_[first].exchange(true, std::memory_order_acq_rel)) held_bytes_ += kChunk;
    }
  }
  return true;
}

std::uint64_t SharedArena::trim(std::uint64_t keep, std::uint64_t most) {
  if (heldBytes() <= keep) return 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  reclaim(in_use_.size());
  std::uint64_t given = 0;
  allocator_.visitFreeChunks(kChunk, [&](std::uint64_t chunk) {
    if (given >= most || heldBytes() <= keep) return false;
    std::atomic<bool>& obtained = obtained_[static_cast<std::size_t>(chunk)];
    if (!obtained.load(std::memory_order_acquire)) return true;
    if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(kArenaDataOffset + chunk * kChunk),
                    static_cast<off_t>(kChunk)) != 0) {
      return false;
    }
    obtained.store(false, std::memory_order_release);
    held_bytes_ -= kChunk;
    given += kChunk;
    return true;
  });
  return given;
}

std::size_t SharedArena::blocksInUse() {
  const std::lock_guard<std::mutex> lock(mutex_);
  reclaim(in_use_.size());
  return in_use_.size();
}

}  // namespace weft::transport
