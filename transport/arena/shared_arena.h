// SharedArena: memory that this process shares with one receiver on the same host, for the
// bytes of large buffers. This is the sender's end; ArenaView is the other.
//
// One sparse memfd, sealed so that it can never shrink under the receiver, and gone with its last
// user, also after a kill -9. Only the sender knows which block is where: it reads nothing back
// from the memory but whether a slot is free, so that a receiver which overwrites all of it harms
// only what was meant for itself.
//
// Memory is obtained before its first use and stays warm until tick() finds the arena idle
// (WarmPool).
//
// Threads: any; no lock is held while a block's bytes are written.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/arena/arena_layout.h"
#include "transport/base/error.h"
#include "transport/base/fork_guard.h"
#include "transport/base/os/unique_fd.h"
#include "transport/memory/warm_pool.h"

namespace weft::transport {

class SharedArena {
 public:
  // Room for `data_bytes` in blocks (rounded to 2 MiB), at most `slots` of them at once. kSystem
  // when the machine does not give it.
  static Result<std::shared_ptr<SharedArena>> create(std::uint64_t data_bytes, std::uint32_t slots);
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  int fd() const noexcept { return fd_.get(); }
  const ArenaOffer& offer() const noexcept { return offer_; }

  // A block to fill and then to name to the receiver. None: no room, no slot or no memory.
  std::optional<ArenaDescriptor> take(std::size_t size);
  // Call it once the block's bytes are written: from then on the receiver may release the block.
  void handOver(const ArenaDescriptor& block) noexcept;
  // After handOver(): the receiver has all it needs. A block that it never took is free now.
  void withdraw(const ArenaDescriptor& block) noexcept;
  // Where a block's bytes are here. They stay while it is not free.
  std::byte* bytes(const ArenaDescriptor& block) const noexcept { return base_ + block.offset; }
  // Frees a block that was not handed over: nobody was told of it.
  void giveBack(const ArenaDescriptor& block);

  // Call it now and then: after a while in which nothing was taken it gives back most of the
  // memory.
  void tick(std::chrono::steady_clock::time_point now);

  std::uint64_t heldBytes() const { return pool_.heldBytes(); }
  // Blocks that the receiver has not released.
  std::size_t blocksInUse();

 private:
  struct InUse {
    std::uint32_t slot = 0;
    std::uint64_t offset = 0;  // in the data part
    std::uint64_t size = 0;
  };

  SharedArena(UniqueFd fd, std::byte* base, const ArenaOffer& offer);

  std::optional<ArenaDescriptor> take(std::size_t size, std::size_t looks);
  void reclaim(std::size_t most);
  void release(std::size_t index);

  const UniqueFd fd_;
  std::byte* const base_;
  const ArenaOffer offer_;
  const ForkGuard fork_guard_;
  // Per slot. Without it a dishonest receiver could release a block while it is being written.
  const std::unique_ptr<std::atomic<bool>[]> handed_over_;
  WarmPool pool_;  // the data part; its lock is taken within this one's

  std::mutex mutex_;  // guards what follows
  std::vector<std::uint32_t> free_slots_;
  std::vector<InUse> in_use_;  // in no order
  std::size_t look_at_ = 0;    // where the next look for released blocks begins
};

}  // namespace weft::transport
