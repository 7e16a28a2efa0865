// All exported blocks of this process: finds the block of an address, bounds what blocks take, and
// keeps unused mappings of received ones. For exported_block.cpp and exported_file.cpp.
//
// Threads: any; its lock guards the blocks' states, too. Ownership: never destroyed, because
// tensors may outlive static objects.
#pragma once

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "transport/memory/exported_block.h"
#include "transport/memory/pages.h"

namespace weft::transport {

struct ExportedBlock::Registry {
  using Time = std::chrono::steady_clock::time_point;
  // For all peers together: half of what the kernel allows a process by default.
  static constexpr std::size_t kMostMappings = 32'768;
  static constexpr std::size_t kMostKept = 64;
  static constexpr std::uint64_t kMostKeptBytes = std::uint64_t{1} << 30;
  struct Kept {
    std::unique_ptr<ExportedBlock> block;
    Time since;
  };

  static Registry& get() {
    static Registry* const one = [] {
      auto* const made = new Registry;
      // The forking thread has the lock until it has forked.
      ::pthread_atfork(
          [] {
            get().mutex.lock();
            for (const auto& [address, block] : get().blocks)
              block->freezeLocked();
          },
          [] { get().mutex.unlock(); }, [] { get().mutex.unlock(); });
      return made;
    }();
    return *one;
  }

  static std::size_t mostFiles() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
    return static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur / 4, 4096));
  }
  // Counts a block that is to be made here, unless this process has as much as it may.
  Error reserve(std::size_t bytes) {
    const std::uint64_t most = machineBytes() / 2;
    const std::lock_guard<std::mutex> lock(mutex);
    if (bytes > most || held.bytes_held > most - bytes) {
      return {ErrorCode::kLimitExceeded,
              std::to_string(held.bytes_held) + " bytes of exported memory are in use here, and " +
                  std::to_string(bytes) + " more would exceed half of the machine's"};
    }
    if (const std::size_t open = ExportedFile::count.load(); open >= mostFiles()) {
      return {ErrorCode::kLimitExceeded,
              std::to_string(open) +
                  " exported blocks are in use here, a quarter of the limit on open files"};
    }
    held.bytes_held += bytes;
    return Error::ok();
  }
  void unreserve(std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    held.bytes_held -= bytes;
  }

  void insert(ExportedBlock& block) {
    const std::lock_guard<std::mutex> lock(mutex);
    blocks[reinterpret_cast<std::uintptr_t>(block.base_)] = &block;
    count.store(blocks.size(), std::memory_order_release);
  }
  void erase(const ExportedBlock& block) {
    const std::lock_guard<std::mutex> lock(mutex);
    blocks.erase(reinterpret_cast<std::uintptr_t>(block.base_));
    count.store(blocks.size(), std::memory_order_release);
  }

  void keep(std::unique_ptr<ExportedBlock> block) {
    std::deque<Kept> gone;
    const std::lock_guard<std::mutex> lock(mutex);
    kept_bytes += block->mapped_;
    kept.push_back({std::move(block), std::chrono::steady_clock::now()});
    gone = takeExcess();
  }
  // A kept one of exactly this part of this memory; or null.
  std::unique_ptr<ExportedBlock> reuse(const SealedMemory& memory, std::uint64_t offset,
                                       std::uint64_t size) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = std::find_if(kept.begin(), kept.end(), [&](const Kept& one) {
      const ExportedBlock& block = *one.block;
      return block.memory_.device == memory.device && block.memory_.inode == memory.inode &&
             block.offset_ == offset && block.size_ == size;
    });
    if (found == kept.end()) return nullptr;
    std::unique_ptr<ExportedBlock> block = std::move(found->block);
    kept_bytes -= block->mapped_;
    kept.erase(found);
    return block;
  }
  // With the lock: the kept ones that are too many or too old, to be unmapped without it.
  std::deque<Kept> takeExcess(Time oldest = Time::min()) {
    std::deque<Kept> gone;
    while (!kept.empty() && (caches == 0 || kept.size() > kMostKept ||
                             kept_bytes > kMostKeptBytes || kept.front().since < oldest)) {
      kept_bytes -= kept.front().block->mapped_;
      gone.push_back(std::move(kept.front()));
      kept.pop_front();
    }
    return gone;
  }

  std::atomic<std::size_t> count{0};  // of blocks: spares those who have none the lock
  std::mutex mutex;                   // guards what follows
  // By address: those made here, and those received that somebody uses.
  std::map<std::uintptr_t, ExportedBlock*> blocks;
  // The files of received blocks, by device and inode.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::weak_ptr<const ExportedFile>> files;
  Stats held;             // made here
  std::deque<Kept> kept;  // oldest first
  std::uint64_t kept_bytes = 0;
  int caches = 0;
};

}  // namespace weft::transport
