#include "c10d_plugin/shm/segment/heap.h"

#include <sys/mman.h>

#include <utility>

#include "transport/memory/pages.h"

namespace weft::collectives::shm {

Heap::Heap(std::shared_ptr<Segment> segment, int rank)
    : segment_(std::move(segment)), rank_(rank) {}

void Heap::map() {
  const Result<std::byte*> mapped = segment_->heap(rank_);
  if (!mapped.ok()) return;
  transport::WarmPool::Memory memory;
  memory.base = mapped.value();
  memory.bytes = segment_->layout().heap_bytes;
  memory.owner = segment_;
  memory.fd = segment_->fd();
  memory.file_offset = segment_->layout().heap(rank_);
  memory.least = kLeast;
  memory.most_idle = kKeep;
  // Unlike the others' heaps: a child may want to read its parent's tensors.
  ::madvise(memory.base, memory.bytes, MADV_DOFORK);
  pool_ = std::make_shared<transport::WarmPool>(memory);
  base_.store(memory.base, std::memory_order_release);
}

transport::OwnedBuffer Heap::take(std::size_t size) {
  // First: a child does not map the segment's other parts.
  if (!fork_guard_.inOwnProcess() || size < kLeast || segment_->failed()) return {};
  if (base_.load(std::memory_order_acquire) == nullptr) {
    const std::lock_guard<std::mutex> lock(map_mutex_);
    if (pool_ == nullptr) map();
    if (pool_ == nullptr) return {};
  }
  return pool_->take(size);
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

bool Heap::detach() noexcept {
  std::byte* const begin = base_.load(std::memory_order_acquire);
  if (begin == nullptr || !fork_guard_.inOwnProcess()) return true;
  constexpr std::size_t kChunk = transport::kMemoryChunk;
  return pool_->visitHeld([&](std::uint64_t offset) {
    std::byte* const memory = begin + offset;
    const std::uint64_t at = segment_->layout().heap(rank_) + offset;
    if (::mmap(memory, kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
               segment_->fd(), static_cast<off_t>(at)) == MAP_FAILED) {
      return false;
    }
    // A page of a private mapping is the file's until it is written. Other threads may write it
    // now, so the write is an atomic one that changes nothing.
    for (std::size_t page = 0; page < kChunk; page += kPage)
      __atomic_fetch_or(reinterpret_cast<std::uint8_t*>(memory + page), 0, __ATOMIC_RELAXED);
    return true;
  });
}

}  // namespace weft::collectives::shm
