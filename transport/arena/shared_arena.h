// SharedArena: memory that this process shares with one receiver on the same host, for the
// bytes of large buffers. This is the sender's end; ArenaView is the other.
//
// One sparse memfd, sealed so that it can never shrink under the receiver, and gone with its last
// user, also after a kill -9. Only the sender knows which block is where: it reads nothing back
// from the memory but whether a slot is free, so that a receiver which overwrites all of it harms
// only what was meant for itself.
//
// Memory of a range is obtained (fallocate) before its first use, so that a lack of it shows as no
// block, not as a SIGBUS. It stays warm until trim().
//
// Threads: any; no lock is held while a block's bytes are written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/arena/arena_layout.h"
#include "transport/base/error.h"
#include "transport/base/fork_guard.h"
#include "transport/base/unique_fd.h"
#include "transport/memory/block_allocator.h"

namespace weft::transport {

class SharedArena {
 public:
  struct Block {
    std::byte* data = nullptr;
    ArenaDescriptor where;
  };

  // Room for `data_bytes` in blocks (rounded to 2 MiB), at most `slots` of them at once. kSystem
  // when the machine does not give it.
  static Result<std::shared_ptr<SharedArena>> create(std::uint64_t data_bytes, std::uint32_t slots);
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  int fd() const noexcept { return fd_.get(); }
  const ArenaOffer& offer() const noexcept { return offer_; }

  // A block to fill and then to name to the receiver. None: no room, no slot or no memory.
  std::optional<Block> take(std::size_t size);
  // Once its bytes are written: from now on the receiver may release it.
  void handOver(const ArenaDescriptor& block) noexcept;
  // After handOver(): the receiver has all it needs. A block that it never took is free now.
  void withdraw(const ArenaDescriptor& block) noexcept;
  // Where a block's bytes lie here. They stay while it is not free.
  std::byte* bytes(const ArenaDescriptor& block) const noexcept { return base_ + block.offset; }
  // Instead of handOver(): nobody was told of it.
  void giveBack(const ArenaDescriptor& block);

  // Gives the memory of free ranges back to the system, at most `most` bytes of it, while more than
  // `keep` is held. Holds the lock meanwhile: for quiet times. Returns the bytes given back.
  std::uint64_t trim(std::uint64_t keep, std::uint64_t most);

  std::uint64_t heldBytes() const noexcept { return held_bytes_.load(std::memory_order_relaxed); }
  // Blocks that the receiver has not released.
  std::size_t blocksInUse();

 private:
  struct InUse {
    std::uint32_t slot = 0;
    std::uint64_t offset = 0;  // in the data part
    std::uint64_t size = 0;
  };

  SharedArena(UniqueFd fd, std::byte* base, ArenaOffer offer);

  ArenaSlot& slot(std::uint32_t index) const noexcept;
  std::optional<std::uint64_t> takeLocked(std::size_t size);
  void reclaim(std::size_t most);
  void release(std::size_t index);
  bool obtain(std::uint64_t offset, std::uint64_t size);

  const UniqueFd fd_;
  std::byte* const base_;
  const ArenaOffer offer_;
  const ForkGuard fork_guard_;
  const std::size_t chunk_count_;
  // Per 2 MiB of the data part: its memory was obtained. Cleared under the lock, only where all is
  // free.
  const std::unique_ptr<std::atomic<bool>[]> obtained_;
  std::atomic<std::uint64_t> held_bytes_{0};
  // Per slot. Without it a receiver that lies could release a block while it is being written.
  const std::unique_ptr<std::atomic<bool>[]> handed_over_;

  std::mutex mutex_;  // guards what follows
  BlockAllocator allocator_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<InUse> in_use_;  // in no order
  std::size_t look_at_ = 0;    // where the next look for released blocks begins
};

}  // namespace weft::transport
