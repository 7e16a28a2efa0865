// What lies where in a group's shared memory. Every offset is computed from the layout's numbers,
// never read from the memory, so that a rank that overwrites it causes wrong sums at worst.
//
//   0         header: magic, why the group ended
//   4 KiB     per rank: control block
//   then      per rank, three times: a small buffer, for data that all ranks read whole
//   2 MiB …   per rank, three times: a buffer for pieces of large data
//   then      per rank: a heap for tensors, sparse, mapped by the ranks that use it (heap.h)
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/memory/pages.h"

namespace weft::collectives::shm {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kPage = 4096;
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
                   std::size_t heap_bytes);

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
