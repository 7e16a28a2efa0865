// Heap: a rank's part of the group's shared memory from which tensors are made. The other ranks
// read and write such tensors where they are: no copy into buffers, no copy out.
//
// The heap is a WarmPool in the group's memfd, mapped when the first block is taken. It keeps up to
// kKeep bytes of unused memory warm.
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

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/shm/segment/segment.h"
#include "transport/base/buffer.h"
#include "transport/base/fork_guard.h"
#include "transport/memory/warm_pool.h"

namespace weft::collectives::shm {

class Heap {
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

  // The offset of these bytes in this heap; none: they are elsewhere.
  std::optional<std::uint64_t> offsetOf(ConstBytes bytes) const noexcept;

  // Memory in use by blocks or kept for them.
  std::uint64_t heldBytes() const { return base_.load() == nullptr ? 0 : pool_->heldBytes(); }

 private:
  void map();

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const transport::ForkGuard fork_guard_;
  std::mutex map_mutex_;                       // while it is mapped
  std::shared_ptr<transport::WarmPool> pool_;  // null: there is no memory for it
  std::atomic<std::byte*> base_{nullptr};      // set after pool_; null: nothing was taken
};

}  // namespace weft::collectives::shm
