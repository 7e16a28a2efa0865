// Heap: a rank's part of the group's shared memory from which tensors are made. The other ranks
// read and write such tensors where they lie: no copy into buffers, no copy out.
//
// The heap is a range of addresses in the group's memfd; memory is taken, in pieces of 2 MiB, when
// a block first needs it, so a lack of memory is a failed allocation, not a signal. A block is free
// again when its last owner goes. Its memory stays warm for the next block, up to kKeep unused
// bytes; the rest goes back to the system at once.
//
// A block may outlive the group and keeps its memory mapped. A failed group gives no more blocks.
//
// fork(): a child sees its parent's blocks (and the parent sees what the child writes there), takes
// none and frees none.
//
// Threads: any thread may call any member.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/shm/segment/segment.h"
#include "transport/base/buffer.h"
#include "transport/base/fork_guard.h"
#include "transport/memory/block_allocator.h"

namespace weft::collectives::shm {

class Heap : public std::enable_shared_from_this<Heap> {
 public:
  // Less than this is as fast elsewhere: it goes through the small buffers.
  static constexpr std::size_t kLeast = std::size_t{4} << 10;
  static constexpr std::uint64_t kKeep = std::uint64_t{256} << 20;

  Heap(std::shared_ptr<Segment> segment, int rank);
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // `size` bytes with anything in them, aligned to a page. No data: too little to be worth it, no
  // room, no memory, or a group that has failed.
  transport::OwnedBuffer take(std::size_t size);

  // After the group has failed: makes the heap's contents this process's own, at the same
  // addresses, so that a rank that was stopped in the middle of writing here and is continued later
  // changes nothing. False: the system refuses it now.
  bool detach() noexcept;

  // The offset of these bytes in this heap; none: they lie elsewhere.
  std::optional<std::uint64_t> offsetOf(ConstBytes bytes) const noexcept;

  // Memory in use by blocks or kept for them.
  std::uint64_t heldBytes() const;

 private:
  class Lease;
  struct Range {
    std::uint64_t first = 0;  // in chunks
    std::uint64_t end = 0;
  };

  std::byte* base();
  std::vector<Range> coldPartsOf(std::uint64_t offset, std::uint64_t size) const;
  bool obtain(const std::vector<Range>& ranges);
  void give(std::uint64_t offset, std::uint64_t size) noexcept;
  void trim() noexcept;

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const ForkGuard fork_guard_;
  std::atomic<std::byte*> base_{nullptr};  // null until the first block

  mutable std::mutex mutex_;  // a leaf; guards what follows
  transport::BlockAllocator allocator_;
  std::vector<bool> warm_;  // per chunk: its memory was obtained
  std::uint64_t warm_bytes_ = 0;
  std::uint64_t used_bytes_ = 0;
};

}  // namespace weft::collectives::shm
