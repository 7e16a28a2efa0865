// ExportedBlock: memory of its own memfd that can be sent to processes of this host without a copy.
//
// While its maker fills it, it is mapped shared. The first offer() freezes it: the maker's own
// mapping becomes a private one of the same file, at the same address, and the file is sealed
// against writing. From then on writes go to private copies of the pages, so that what was sent
// never changes under its receivers, and what a receiver writes is its own. The kernel tells
// whether a page has become private (hasOwnPages), also after writes through NumPy or a raw
// pointer. Parts without such pages may be offered again; others must be copied.
//
// A receiver holds a block, too (open()): it is frozen from the start and can be forwarded.
//
// The system frees the memory with its last mapping and descriptor, in whichever process those are;
// nothing is left after a kill -9.
//
// Threads: any. A write by one thread while another sends the same memory may be in what arrives,
// or not, as with any send. fork(): freezes all blocks before it, so that a child and its parent do
// not see each other's writes, as with any other memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "transport/base/buffer.h"
#include "transport/base/error.h"
#include "transport/memory/exported_file.h"
#include "transport/memory/sealed_memory.h"

namespace weft::transport {

class ExportedBlock : public std::enable_shared_from_this<ExportedBlock> {
 public:
  // Less than this is cheaper to copy than to map.
  static constexpr std::size_t kMinBytes = std::size_t{64} << 10;

  // Zeroed memory, obtained at once. kLimitExceeded when this process holds as much as it may: half
  // of the machine's memory, or a quarter of its file descriptors. kSystem when the machine does
  // not give it.
  static Result<std::shared_ptr<ExportedBlock>> create(std::size_t bytes);
  // A part of what a peer exported. kProtocol: it is outside. kSystem: it cannot be mapped, or too
  // many are. When its last user goes and no page of it was written, the mapping is kept for a
  // moment, in case the same part comes again: making one costs more than copying some megabytes.
  static Result<std::shared_ptr<ExportedBlock>> open(
      const std::shared_ptr<const ExportedFile>& file, std::uint64_t offset, std::uint64_t size);
  // The block that all these bytes are a part of; null: they are ordinary memory.
  static std::shared_ptr<ExportedBlock> find(const std::byte* data, std::size_t size);
  ~ExportedBlock();
  ExportedBlock(const ExportedBlock&) = delete;
  ExportedBlock& operator=(const ExportedBlock&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  // For the one who sends it; -1: it cannot be forwarded.
  int fd() const noexcept { return file_ == nullptr ? -1 : file_->fd.get(); }

  // Where in the file these bytes of the block are, for a receiver to map them; none: they must be
  // copied. From the first time on the block is frozen.
  std::optional<std::uint64_t> offer(const std::byte* data, std::size_t size);
  // What was offered, as it was then.
  OwnedBuffer offered(std::uint64_t offset, std::size_t size) const;
  // Bytes that this process has offered, to any receiver; and those of the blocks of create() that
  // still exist.
  struct Stats {
    std::uint64_t bytes_sent = 0;
    std::uint64_t bytes_held = 0;
  };
  static Stats stats();

  // Fills the page tables of a received block in one go instead of page by page, once.
  void populate() noexcept;

  // While one of these lives, unused mappings of received blocks are kept for a moment; its owner
  // calls tick() now and then.
  class Cache {
   public:
    Cache();
    ~Cache();
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;
    static void tick(std::chrono::steady_clock::time_point now);
  };

 private:
  enum class State : std::uint8_t {
    kShared,  // what is written is in the file
    kFrozen,
    kUnfit,  // it could not be mapped privately or sealed: it is never sent
  };
  friend class ExportedFile;
  struct Registry;  // export_registry.h

  ExportedBlock(std::shared_ptr<const ExportedFile> file, std::byte* base, std::size_t mapped,
                std::uint64_t offset, std::size_t size, State state);
  void freezeLocked() noexcept;

  std::shared_ptr<const ExportedFile> file_;  // null: too many were open
  const SealedMemory memory_;
  std::byte* const base_;  // a page's begin
  const std::size_t mapped_;
  const std::uint64_t offset_;  // of data_ in the file
  std::byte* const data_;
  const std::size_t size_;
  const bool own_;  // made here
  State state_;     // guarded by the registry's lock
  std::atomic<bool> populated_{false};
};

}  // namespace weft::transport
