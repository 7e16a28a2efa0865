// WarmPool: memory for large buffers that are read from a socket. A block is reused with its pages
// once its last owner is gone, because finding new pages costs several times as much as the reading
// (malloc gives such blocks back to the system each time).
//
// One private mapping, of which only what was used takes memory. Blocks are taken at the lowest
// free offset, where the pages are warm. After a while in which nothing was taken most of the
// memory goes back to the system.
//
// Threads: any; tick() by one. Ownership: blocks keep the pool's memory. A forked child releases
// nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "transport/base/buffer.h"
#include "transport/base/fork_guard.h"
#include "transport/memory/block_allocator.h"
#include "transport/memory/idle_detector.h"

namespace weft::transport {

class WarmPool : public std::enable_shared_from_this<WarmPool> {
 public:
  // Smaller buffers are better served by malloc, which keeps them warm itself.
  static constexpr std::size_t kThreshold = std::size_t{32} << 10;
  // Room by default, at most a quarter of the machine's memory: what does not fit goes elsewhere.
  static constexpr std::uint64_t kRoom = std::uint64_t{2} << 30;

  // Room for `room` bytes in blocks (rounded to 2 MiB). Null: the system gives no such mapping.
  static std::shared_ptr<WarmPool> create(std::uint64_t room = kRoom);
  ~WarmPool();
  WarmPool(const WarmPool&) = delete;
  WarmPool& operator=(const WarmPool&) = delete;

  // At least `size` bytes, aligned to a page, not cleared; free again when the last owner is gone.
  // No data: too small a buffer, or no room.
  OwnedBuffer take(std::size_t size);

  // Now and then: gives back what has not been used for a while (IdleDetector).
  void tick(std::chrono::steady_clock::time_point now);
  // Gives the memory of free ranges back to the system, at most `most` bytes of it, while more than
  // `keep` is held. Returns the bytes given back.
  std::uint64_t trim(std::uint64_t keep, std::uint64_t most);

  // Memory that was used and not given back, in whole pieces of 2 MiB.
  std::uint64_t heldBytes() const noexcept { return held_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t freeBytes() const;

 private:
  class Lease;
  WarmPool(std::byte* base, std::uint64_t room);
  void give(std::uint64_t offset, std::uint64_t size) noexcept;

  std::byte* const base_;
  const std::uint64_t room_;
  const ForkGuard fork_guard_;
  std::atomic<std::uint64_t> held_bytes_{0};  // written with the lock

  mutable std::mutex mutex_;  // a leaf; guards what follows
  BlockAllocator allocator_;
  const std::unique_ptr<bool[]> used_;  // per 2 MiB: it may have pages
  std::uint64_t taken_ = 0;             // blocks so far

  IdleDetector idle_;  // of the thread that calls tick()
};

}  // namespace weft::transport
