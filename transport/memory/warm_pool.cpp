#include "transport/memory/warm_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "transport/memory/huge_pages.h"
#include "transport/memory/pages.h"

namespace weft::transport {
namespace {

constexpr std::uint64_t kChunk = kMemoryChunk;

}  // namespace

// Owns one block. A forked child has a copy of it: its owners there must not touch the lock, which
// another thread may have held at the fork, and nothing is taken from the child's copy.
class WarmPool::Lease {
 public:
  Lease(std::shared_ptr<WarmPool> pool, std::uint64_t offset, std::uint64_t size)
      : pool_(std::move(pool)), offset_(offset), size_(size) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    if (pool_->fork_guard_.inOwnProcess()) pool_->give(offset_, size_);
  }

 private:
  const std::shared_ptr<WarmPool> pool_;
  const std::uint64_t offset_;
  const std::uint64_t size_;
};

std::shared_ptr<WarmPool> WarmPool::create(std::uint64_t room) {
  room = roundUp(atMostQuarter(room), kChunk);
  // In huge pages, where the system has them: both sides' copying then takes a sixth less.
  void* const base =
      mapAligned(room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  if (base == MAP_FAILED) return nullptr;
  return std::shared_ptr<WarmPool>(new WarmPool(static_cast<std::byte*>(base), room));
}

WarmPool::WarmPool(std::byte* base, std::uint64_t room)
    : base_(base), room_(room), allocator_(room), used_(std::make_unique<bool[]>(room / kChunk)) {}

WarmPool::~WarmPool() { ::munmap(base_, room_); }

OwnedBuffer WarmPool::take(std::size_t size) {
  if (size < kThreshold) return {};
  std::optional<std::uint64_t> offset;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    offset = allocator_.take(size);
    if (!offset) return {};
    ++taken_;
    for (std::uint64_t chunk = *offset / kChunk; chunk * kChunk < *offset + size; ++chunk) {
      if (!std::exchange(used_[chunk], true)) held_bytes_ += kChunk;
    }
  }
  return {base_ + *offset, size, std::make_shared<Lease>(shared_from_this(), *offset, size)};
}

void WarmPool::give(std::uint64_t offset, std::uint64_t size) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  allocator_.give(offset, size);
}

void WarmPool::tick(std::chrono::steady_clock::time_point now) {
  const std::uint64_t taken = [this] {
    const std::lock_guard<std::mutex> lock(mutex_);
    return taken_;
  }();
  if (idle_.look(taken, now)) trim(IdleDetector::kKeep, IdleDetector::kTrimAtOnce);
}

std::uint64_t WarmPool::trim(std::uint64_t keep, std::uint64_t most) {
  if (heldBytes() <= keep) return 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::uint64_t given = 0;
  allocator_.visitFreeChunks(kChunk, [&](std::uint64_t chunk) {
    if (given >= most || heldBytes() <= keep) return false;
    if (!used_[chunk]) return true;
    if (::madvise(base_ + chunk * kChunk, kChunk, MADV_DONTNEED) != 0) return false;
    used_[chunk] = false;
    held_bytes_ -= kChunk;
    given += kChunk;
    return true;
  });
  return given;
}

std::uint64_t WarmPool::freeBytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return allocator_.freeBytes();
}

}  // namespace weft::transport
