#include "c10d_plugin/shm/segment/heap.h"

#include <sys/mman.h>

#include <utility>

#include "transport/memory/pages.h"

namespace weft::collectives::shm {
namespace {

constexpr std::uint64_t kChunk = transport::kMemoryChunk;

constexpr std::uint64_t chunksOf(std::uint64_t bytes) { return (bytes + kChunk - 1) / kChunk; }

}  // namespace

// Owns one block. A forked child's copy of it frees nothing.
class Heap::Lease {
 public:
  Lease(std::shared_ptr<Heap> heap, std::uint64_t offset, std::uint64_t size)
      : heap_(std::move(heap)), offset_(offset), size_(size) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    if (heap_->fork_guard_.inOwnProcess()) heap_->give(offset_, size_);
  }

 private:
  const std::shared_ptr<Heap> heap_;
  const std::uint64_t offset_;
  const std::uint64_t size_;
};

Heap::Heap(std::shared_ptr<Segment> segment, int rank)
    : segment_(std::move(segment)),
      rank_(rank),
      allocator_(segment_->layout().heap_bytes),
      warm_(chunksOf(segment_->layout().heap_bytes)) {}

std::byte* Heap::base() {
  if (std::byte* const known = base_.load(std::memory_order_acquire)) return known;
  Result<std::byte*> mapped = segment_->heap(rank_);
  if (!mapped.ok()) return nullptr;
  // Unlike the others' heaps: a child may want to read its parent's tensors.
  ::madvise(mapped.value(), segment_->layout().heap_bytes, MADV_DOFORK);
  base_.store(mapped.value(), std::memory_order_release);
  return mapped.value();
}

transport::OwnedBuffer Heap::take(std::size_t size) {
  // First: a child does not map the segment's other parts.
  if (!fork_guard_.inOwnProcess()) return {};
  if (size < kLeast || size > segment_->layout().heap_bytes || segment_->failed()) return {};
  std::byte* const begin = base();
  if (begin == nullptr) return {};
  std::optional<std::uint64_t> offset;
  std::vector<Range> cold;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    offset = allocator_.take(size);
    if (!offset) return {};
    used_bytes_ += size;
    cold = coldPartsOf(*offset, size);
  }
  // From here on the block is freed by its owner.
  auto lease = std::make_shared<Lease>(shared_from_this(), *offset, size);
  if (!cold.empty() && !obtain(cold)) return {};
  return {begin + *offset, size, std::move(lease)};
}

std::vector<Heap::Range> Heap::coldPartsOf(std::uint64_t offset, std::uint64_t size) const {
  std::vector<Range> cold;
  for (std::uint64_t chunk = offset / kChunk; chunk < chunksOf(offset + size); ++chunk) {
    if (warm_[chunk]) continue;
    if (cold.empty() || cold.back().end != chunk) cold.push_back({chunk, chunk});
    cold.back().end = chunk + 1;
  }
  return cold;
}

// Without the lock: the chunks hold a block in use, so nobody takes their memory away. Two threads
// may take the memory of a chunk that they share; the second time costs little.
bool Heap::obtain(const std::vector<Range>& ranges) {
  for (const Range& range : ranges) {
    const std::uint64_t bytes = (range.end - range.first) * kChunk;
    if (segment_->obtainHeap(rank_, range.first * kChunk, bytes)) return false;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Range& range : ranges) {
    for (std::uint64_t chunk = range.first; chunk < range.end; ++chunk) {
      if (!warm_[chunk]) warm_bytes_ += kChunk;
      warm_[chunk] = true;
    }
  }
  return true;
}

std::optional<std::uint64_t> Heap::offsetOf(ConstBytes bytes) const noexcept {
  const std::byte* const begin = base_.load(std::memory_order_acquire);
  if (begin == nullptr) return std::nullopt;
  const auto at = reinterpret_cast<std::uintptr_t>(bytes.data());
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  const std::uint64_t room = segment_->layout().heap_bytes;
  if (at < first || at - first > room || bytes.size() > room - (at - first)) return std::nullopt;
  return at - first;
}

void Heap::give(std::uint64_t offset, std::uint64_t size) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  allocator_.give(offset, size);
  used_bytes_ -= size;
  trim();
}

bool Heap::detach() noexcept {
  std::byte* const begin = base_.load(std::memory_order_acquire);
  if (begin == nullptr || !fork_guard_.inOwnProcess()) return true;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::uint64_t chunk = 0; chunk < warm_.size(); ++chunk) {
    if (!warm_[chunk]) continue;
    std::byte* const memory = begin + chunk * kChunk;
    const std::uint64_t at = segment_->layout().heap(rank_) + chunk * kChunk;
    if (::mmap(memory, kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
               segment_->fd(), static_cast<off_t>(at)) == MAP_FAILED) {
      return false;
    }
    // A page of a private mapping is the file's until it is written. Other threads may write it
    // now, so the write is an atomic one that changes nothing.
    for (std::size_t page = 0; page < kChunk; page += kPage)
      __atomic_fetch_or(reinterpret_cast<std::uint8_t*>(memory + page), 0, __ATOMIC_RELAXED);
  }
  return true;
}

// Called with the lock.
void Heap::trim() noexcept {
  if (warm_bytes_ <= used_bytes_ + kKeep) return;
  std::byte* const begin = base_.load(std::memory_order_relaxed);
  allocator_.visitFreeChunks(kChunk, [&](std::uint64_t chunk) {
    if (warm_bytes_ <= used_bytes_ + kKeep) return false;
    if (!warm_[chunk]) return true;
    if (::madvise(begin + chunk * kChunk, kChunk, MADV_REMOVE) != 0) return false;
    warm_[chunk] = false;
    warm_bytes_ -= kChunk;
    return true;
  });
}

std::uint64_t Heap::heldBytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return warm_bytes_;
}

}  // namespace weft::collectives::shm
