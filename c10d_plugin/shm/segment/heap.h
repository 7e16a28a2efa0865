// Heap: a rank's part of the group's shared memory from which tensors are made. What lies there the
// other ranks read, and add to, where it lies: no copy into buffers, no copy out.
//
// Room is only a range of addresses in the group's memfd; memory is obtained (in pieces of 2 MiB)
// when a block first needs it, so that a lack of it is a block that cannot be had, not a signal.
// A block is free again when its last owner goes. Its memory stays warm for the next one, up to
// kKeep bytes that nobody uses; what is more goes back to the system at once.
//
// A block may outlive the group, and keeps its memory mapped. A group that has failed gives no
// blocks any more.
//
// fork(): a child sees its parent's blocks (and the parent sees what the child writes there), takes
// none and frees none.
//
// Threads: any thread may call any member.
#pragma once

#include <sys/types.h>

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
#include "transport/memory/block_allocator.h"

namespace weft::collectives::shm {

class Heap : public std::enable_shared_from_this<Heap> {
 public:
  // Less than this is as fast elsewhere: it goes through the small slots.
  static constexpr std::size_t kLeast = std::size_t{4} << 10;
  static constexpr std::uint64_t kKeep = std::uint64_t{256} << 20;

  Heap(std::shared_ptr<Segment> segment, int rank);
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // `size` bytes with anything in them, aligned to a page. No data: too little to be worth it, no
  // room, no memory, or a group that has failed.
  transport::OwnedBuffer take(std::size_t size);

  // Once the group has failed: makes what lies here this process's own, at the same addresses, so
  // that a rank that was stopped in the middle of writing here, and goes on some day, reaches
  // nobody. False: the system does not allow it now.
  bool detach() noexcept;

  // Where all these bytes lie in this heap; none: elsewhere.
  std::optional<std::uint64_t> offsetOf(ConstBytes bytes) const noexcept;

  // Memory that blocks use, and that is kept for them.
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
  const pid_t process_;
  std::atomic<std::byte*> base_{nullptr};  // null until the first block

  mutable std::mutex mutex_;  // a leaf; guards what follows
  transport::BlockAllocator allocator_;
  std::vector<bool> warm_;  // per chunk: its memory was obtained
  std::uint64_t warm_bytes_ = 0;
  std::uint64_t used_bytes_ = 0;
};

}  // namespace weft::collectives::shm
