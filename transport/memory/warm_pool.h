// WarmPool: memory for large buffers that are read from a socket. It is used again once its last
// owner has let go of it, with its pages, because finding new ones costs several times as much as
// the reading: 256 MiB over loopback take the receiver 19 ms of CPU into pages that are there, and
// 85 into pages that are not (malloc gives such blocks back to the system each time).
//
// One private mapping, of which only what was used takes memory. Blocks are taken at the lowest
// free offset, where the pages are warm. After a while in which nothing was taken most of the
// memory goes back to the system. A block may outlive whoever made the pool.
//
// Any thread may call any member.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "transport/base/buffer.h"
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

  // At least `size` bytes, aligned to a page, with anything in them; free again when the last owner
  // is gone. No data: too small a buffer, or no room.
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
  const pid_t process_;
  std::atomic<std::uint64_t> held_bytes_{0};  // written with the lock

  mutable std::mutex mutex_;  // a leaf; guards what follows
  BlockAllocator allocator_;
  const std::unique_ptr<bool[]> used_;  // per 2 MiB: it may have pages
  std::uint64_t taken_ = 0;             // blocks so far

  IdleDetector idle_;  // of the thread that calls tick()
};

}  // namespace weft::transport
