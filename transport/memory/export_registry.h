// ExportRegistry: all exported blocks of this process. Finds the block of an address, bounds the
// memory and the descriptors they take, and keeps unused mappings of received blocks for a moment,
// because making one costs more than copying some megabytes.
//
// Threads: any. Ownership: never destroyed, because tensors may outlive static objects.
// fork(): freezes all blocks before it, so that a child and its parent do not see each other's
// writes; see ExportedBlock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "transport/base/error.h"
#include "transport/base/unique_fd.h"
#include "transport/memory/sealed_memory.h"

namespace weft::transport {

class ExportedBlock;

class ExportRegistry {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // A block's file: one descriptor for all blocks of it here. Invalid: this process had too many,
  // and the block is not sent on.
  struct File {
    explicit File(UniqueFd own) : fd(std::move(own)) {}
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    const UniqueFd fd;
  };

  static ExportRegistry& get();

  // Counts a block that is to be made here, its descriptor included. kLimitExceeded: this process
  // has as much as it may.
  Error reserve(std::size_t bytes);
  // It is gone; or was not made, and no File counts its descriptor off.
  void unreserve(std::size_t bytes, bool with_descriptor);
  struct Held {
    std::uint64_t bytes = 0;
    std::uint64_t blocks = 0;
  };
  Held held();

  // A block is entered as long as it has users.
  void insert(ExportedBlock& block);
  void erase(const ExportedBlock& block);
  std::shared_ptr<ExportedBlock> find(const std::byte* data, std::size_t size);
  // For received memory.
  std::shared_ptr<const File> fileOf(const UniqueFd& fd, const SealedMemory& memory);
  // Guards the blocks' states.
  std::mutex& mutex() noexcept { return mutex_; }

  // --- received blocks that nobody uses ---
  // Mappings of more bytes are not worth keeping.
  static constexpr std::uint64_t kLargestKept = std::uint64_t{1} << 29;
  // Keeps it for a moment, or destroys it.
  void keep(std::unique_ptr<ExportedBlock> block);
  // One that was kept, of this part of this memory; or null.
  std::unique_ptr<ExportedBlock> reuse(const SealedMemory& memory, std::uint64_t offset,
                                       std::uint64_t size);
  void addKeeper();
  void removeKeeper();
  void dropKept(Time before);

 private:
  struct Kept {
    std::unique_ptr<ExportedBlock> block;
    Time since;
  };

  ExportRegistry() = default;
  static void freezeAll();
  Kept takeOldest();

  std::atomic<std::size_t> count_{0};  // of blocks_: spares those who have none the lock
  std::mutex mutex_;                   // guards what follows
  // By address: those made here, and those received that somebody uses.
  std::map<std::uintptr_t, ExportedBlock*> blocks_;
  Held held_;  // made here
  std::size_t fds_ = 0;
  // Of what was received, by device and inode.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::weak_ptr<const File>> files_;
  std::deque<Kept> kept_;  // oldest first
  std::uint64_t kept_bytes_ = 0;
  int keepers_ = 0;
};

}  // namespace weft::transport
