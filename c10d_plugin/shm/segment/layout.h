// What is where in a group's shared memory. Every offset is computed from the layout's numbers,
// never read from the memory, so that a rank that overwrites it causes wrong sums at worst.
//
//   0         header: magic, why the group ended
//   4 KiB     per rank: control block
//   then      per rank, three times: a small buffer, for data that all ranks read whole
//   2 MiB …   per rank, three times: a buffer for pieces of large data
//   then      per rank: a heap for tensors, sparse, mapped by the ranks that use it (heap.h)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "c10d_plugin/shm/segment/control.h"
#include "transport/base/round_up.h"

namespace weft::collectives::shm {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;
inline constexpr unsigned kBuffers = 3;  // per rank, used in turn; see step_barrier.h
inline constexpr int kMaxRanks = 1024;
inline constexpr std::size_t kMostHeap = std::size_t{64} << 30;

using transport::roundUp;

struct Layout {
  int ranks = 1;
  std::size_t small_bytes = std::size_t{32} << 10;    // of a small buffer; a multiple of kPage
  std::size_t buffer_bytes = std::size_t{512} << 10;  // of a buffer; a multiple of kPage
  std::size_t control_bytes = kPage;                  // of a rank's control block
  std::size_t heap_bytes = 0;                         // of a rank's heap; a multiple of kHugePage

  // 0: the default for so many ranks.
  static Layout of(int ranks, std::size_t buffer_bytes, std::size_t small_bytes,
                   std::size_t heap_bytes) {
    // Smaller buffers cost more meetings; larger ones fall out of a second-level cache before they
    // are read again.
    constexpr std::size_t kBuffer = std::size_t{512} << 10;
    constexpr std::size_t kBufferOfMany = std::size_t{256} << 10;
    Layout layout;
    layout.ranks = ranks;
    const auto count = static_cast<std::size_t>(ranks);
    if (buffer_bytes == 0) buffer_bytes = ranks <= 8 ? kBuffer : kBufferOfMany;
    // Room for a cache line for each of the others.
    layout.buffer_bytes = roundUp(std::max(buffer_bytes, count * kCacheLine), kPage);
    if (small_bytes != 0) layout.small_bytes = roundUp(small_bytes, kPage);
    const std::size_t tables = std::size_t{2} * kSizeTables * count * sizeof(std::uint64_t);
    layout.control_bytes = roundUp(sizeof(Control) + tables, kPage);
    layout.heap_bytes = roundUp(heap_bytes, kHugePage);
    return layout;
  }

  bool operator==(const Layout&) const = default;

  // Whether it is one that of() makes for so many ranks, with numbers that do not overflow. Another
  // process may say anything.
  bool fits(int size) const {
    constexpr std::size_t kMost = std::size_t{1} << 30;
    return buffer_bytes <= kMost && small_bytes <= kMost && heap_bytes <= kMostHeap &&
           *this == of(size, buffer_bytes, small_bytes, heap_bytes);
  }

  std::size_t control(int rank) const {
    return kPage + static_cast<std::size_t>(rank) * control_bytes;
  }
  std::size_t small(int rank, unsigned turn) const {
    return smallBegin() + index(rank, turn) * small_bytes;
  }
  std::size_t buffer(int rank, unsigned turn) const {
    return buffersBegin() + index(rank, turn) * buffer_bytes;
  }
  std::size_t smallBegin() const { return control(ranks); }
  std::size_t buffersBegin() const { return roundUp(small(ranks, 0), kHugePage); }
  // All ranks map the segment up to here.
  std::size_t heapsBegin() const { return roundUp(buffer(ranks, 0), kHugePage); }
  std::size_t heap(int rank) const {
    return heapsBegin() + static_cast<std::size_t>(rank) * heap_bytes;
  }
  std::size_t fileBytes() const { return heap(ranks); }

 private:
  static std::size_t index(int rank, unsigned turn) {
    return static_cast<std::size_t>(rank) * kBuffers + turn;
  }
};

}  // namespace weft::collectives::shm
