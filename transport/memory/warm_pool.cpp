#include "transport/memory/warm_pool.h"

#include <algorithm>
#include <utility>

#include "transport/memory/pages.h"
#include "transport/memory/sealed_memory.h"

namespace weft::transport {
namespace {

constexpr std::uint64_t kChunk = kMemoryChunk;
constexpr std::uint64_t kObtainAtOnce = 8;  // chunks: what a failure may leave behind

}  // namespace

std::shared_ptr<WarmPool> WarmPool::create(std::uint64_t room) {
  room = roundUp(atMostQuarter(room), kChunk);
  // In huge pages, where the system has them: both sides' copying then takes a sixth less.
  void* const base =
      mapAligned(room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  if (base == MAP_FAILED) return nullptr;
  Memory memory;
  memory.base = static_cast<std::byte*>(base);
  memory.bytes = room;
  memory.owner = {base, [room](void* mapped) { ::munmap(mapped, room); }};
  memory.least = kThreshold;
  return std::make_shared<WarmPool>(std::move(memory));
}

WarmPool::WarmPool(Memory memory)
    : memory_(std::move(memory)),
      allocator_(memory_.bytes),
      held_(std::make_unique<bool[]>(memory_.bytes / kChunk)) {}

OwnedBuffer WarmPool::take(std::size_t size) {
  const std::optional<std::uint64_t> offset = takeRange(size);
  if (!offset) return {};
  std::byte* const data = memory_.base + *offset;
  // In a forked child this is the owner of a copy, and another thread may have held the lock at the
  // fork.
  std::shared_ptr<void> owner(data, [pool = shared_from_this(), at = *offset, size](void*) {
    if (pool->fork_guard_.inOwnProcess()) pool->giveRange(at, size);
  });
  return {data, size, std::move(owner)};
}

std::optional<std::uint64_t> WarmPool::takeRange(std::uint64_t size) {
  if (size < memory_.least) return std::nullopt;
  std::optional<std::uint64_t> offset;
  std::uint64_t chunk = 0;
  std::uint64_t end = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    offset = allocator_.take(size);
    if (!offset) return std::nullopt;
    ++taken_;
    used_bytes_ += size;
    chunk = *offset / kChunk;
    end = roundUp(*offset + size, kChunk) / kChunk;
    while (chunk < end && held_[chunk])
      ++chunk;
  }
  if (obtain(chunk, end)) return offset;
  giveRange(*offset, size);
  return std::nullopt;
}

// Without the lock: these chunks hold a block in use, so nobody takes their memory away. Two
// threads may obtain a chunk that they share; the second time costs little.
bool WarmPool::obtain(std::uint64_t chunk, std::uint64_t end) {
  while (chunk < end) {
    const std::uint64_t last = std::min(end, chunk + kObtainAtOnce);
    if (memory_.fd >= 0) {
      const std::uint64_t at = chunk * kChunk;
      const std::uint64_t bytes = (last - chunk) * kChunk;
      makeHuge(memory_.base + at, bytes);
      if (obtainMemory(memory_.fd, memory_.file_offset + at, memory_.base + at, bytes))
        return false;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    for (; chunk < last; ++chunk) {
      if (!std::exchange(held_[chunk], true)) held_bytes_ += kChunk;
    }
    while (chunk < end && held_[chunk])
      ++chunk;
  }
  return true;
}

void WarmPool::giveRange(std::uint64_t offset, std::uint64_t size) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  allocator_.give(offset);
  used_bytes_ -= size;
  trimLocked(used_bytes_ + memory_.most_idle, memory_.bytes);
}

void WarmPool::tick(std::chrono::steady_clock::time_point now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(taken_before_, taken_) != taken_) idle_since_ = now;
  if (now - idle_since_ >= kIdleAfter) trimLocked(kKeep, kTrimAtOnce);
}

void WarmPool::trimLocked(std::uint64_t keep, std::uint64_t most) {
  const std::uint64_t before = held_bytes_;
  if (before <= keep) return;
  allocator_.visitFreeChunks(kChunk, [&](std::uint64_t chunk) {
    if (before - held_bytes_ >= most || held_bytes_ <= keep) return false;
    if (!held_[chunk]) return true;
    const int advice = memory_.fd >= 0 ? MADV_REMOVE : MADV_DONTNEED;
    if (::madvise(memory_.base + chunk * kChunk, kChunk, advice) != 0) return false;
    held_[chunk] = false;
    held_bytes_ -= kChunk;
    return true;
  });
}

std::uint64_t WarmPool::heldBytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return held_bytes_;
}

std::uint64_t WarmPool::freeBytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return allocator_.freeBytes();
}

bool WarmPool::visitHeld(const std::function<bool(std::uint64_t)>& visit) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::uint64_t at = 0; at < memory_.bytes; at += kChunk) {
    if (held_[at / kChunk] && !visit(at)) return false;
  }
  return true;
}

}  // namespace weft::transport
