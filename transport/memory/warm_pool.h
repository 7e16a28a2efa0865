// WarmPool: blocks in a range of addresses, whose pages stay for the next block, because new pages
// cost several times as much as reading or copying into them.
//
// The memory is a mapping of this process alone, for what is read from sockets (malloc gives such
// blocks back to the system each time), or a part of a memfd (SharedArena, the heap of a process
// group). Shared memory is obtained before a block is given, so that a lack of it shows as no
// block, not as a SIGBUS. Blocks are taken at the lowest free offset, where the pages are warm.
// After a while in which nothing was taken, most of the memory goes back to the system; unused
// memory beyond `most_idle` goes back at once.
//
// Threads: any; tick() by one. Ownership: blocks keep the pool. A forked child releases nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "transport/base/buffer.h"
#include "transport/base/fork_guard.h"
#include "transport/memory/block_allocator.h"

namespace weft::transport {

class WarmPool : public std::enable_shared_from_this<WarmPool> {
 public:
  // Smaller buffers are better served by malloc, which keeps them warm itself.
  static constexpr std::size_t kThreshold = std::size_t{32} << 10;
  // Room by default, at most a quarter of the machine's memory: what does not fit goes elsewhere.
  static constexpr std::uint64_t kRoom = std::uint64_t{2} << 30;
  // tick(): when the pool is idle, what is kept nevertheless, and the most that goes back at once
  // (which takes milliseconds).
  static constexpr std::chrono::seconds kIdleAfter{2};
  static constexpr std::uint64_t kKeep = std::uint64_t{4} << 20;
  static constexpr std::uint64_t kTrimAtOnce = std::uint64_t{64} << 20;

  struct Memory {
    std::byte* base = nullptr;
    std::uint64_t bytes = 0;        // a multiple of 2 MiB
    std::shared_ptr<void> owner;    // of the mapping; null: it outlives the pool
    int fd = -1;                    // the memfd that is mapped shared; -1: private memory
    std::uint64_t file_offset = 0;  // of base
    std::uint64_t least = 1;        // smaller blocks are not given
    std::uint64_t most_idle = std::uint64_t{1} << 62;
  };

  // Private memory with room for `room` bytes in blocks of kThreshold or more (rounded to 2 MiB).
  // Null: the system gives no such mapping.
  static std::shared_ptr<WarmPool> create(std::uint64_t room = kRoom);
  explicit WarmPool(Memory memory);

  // At least `size` bytes, aligned to a page, not cleared; free again when the last owner is gone.
  // No data: too small a buffer, no room, or no memory. The pool is owned by a shared_ptr.
  OwnedBuffer take(std::size_t size);
  // As take(), without an owner: returns the block's offset; give it back once, by giveRange().
  std::optional<std::uint64_t> takeRange(std::uint64_t size);
  void giveRange(std::uint64_t offset, std::uint64_t size) noexcept;

  // Call it now and then: gives memory back to the system that has not been used for a while.
  void tick(std::chrono::steady_clock::time_point now);

  // Memory that was used and not given back, in whole pieces of 2 MiB.
  std::uint64_t heldBytes() const;
  std::uint64_t freeBytes() const;
  // Calls `visit` with the offset of each held piece, with the lock, until it returns false.
  bool visitHeld(const std::function<bool(std::uint64_t)>& visit) const;

 private:
  bool obtain(std::uint64_t chunk, std::uint64_t end);
  // Gives the memory of free ranges back to the system, at most `most` bytes of it, while more than
  // `keep` is held.
  void trimLocked(std::uint64_t keep, std::uint64_t most);

  const Memory memory_;
  const ForkGuard fork_guard_;

  mutable std::mutex mutex_;  // a leaf; guards what follows
  BlockAllocator allocator_;
  const std::unique_ptr<bool[]> held_;  // per piece of 2 MiB: it may have pages
  std::uint64_t held_bytes_ = 0;
  std::uint64_t used_bytes_ = 0;  // by blocks
  std::uint64_t taken_ = 0;       // blocks so far

  // Used by the thread that calls tick().
  std::uint64_t taken_before_ = 0;
  std::chrono::steady_clock::time_point idle_since_{};
};

}  // namespace weft::transport
