// ArenaPlacement: where the buffers of one message are that do not go through the socket: in the
// arena, into which they were copied, or in exported blocks, without a copy. It lives as long as
// its frame, until the frame is acknowledged or never will be. Then the arena's blocks that were
// not handed over to the receiver, or were taken back from it, become free.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "transport/arena/arena_layout.h"
#include "transport/arena/shared_arena.h"
#include "transport/base/buffer.h"
#include "transport/memory/exported_block.h"

namespace weft::transport {

class ArenaPlacement {
 public:
  struct Entry {
    std::uint32_t buffer = 0;  // index in the message; ascending
    ArenaDescriptor where;
    std::shared_ptr<ExportedBlock> exported;  // null: it is in the arena
  };

  ArenaPlacement() = default;
  explicit ArenaPlacement(std::shared_ptr<SharedArena> arena) : arena_(std::move(arena)) {}
  ArenaPlacement(ArenaPlacement&& other) noexcept = default;
  ArenaPlacement& operator=(ArenaPlacement&& other) noexcept;
  ~ArenaPlacement() { letGo(); }

  void add(std::uint32_t buffer, const ArenaDescriptor& where) {
    entries_.push_back({buffer, where, nullptr});
  }
  // Offers these bytes of `block`. False: they must be copied, or this frame has as many blocks as
  // it can take along.
  bool addExported(std::uint32_t buffer, const OwnedBuffer& bytes,
                   const std::shared_ptr<ExportedBlock>& block);
  // The descriptors to send with the frame, in the order in which the entries count them.
  const std::vector<int>& fds() const noexcept { return fds_; }
  // Forgets the exported buffers: their bytes will be written with the frame.
  void dropExported() noexcept;
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  // Whether the frame names the memory of entries(), instead of carrying their bytes.
  bool namesMemory() const noexcept {
    return arena_ != nullptr && (blocks_ == Blocks::kOurs || blocks_ == Blocks::kHandedOver);
  }
  // The frame that names the blocks is numbered: the receiver may take them from now on.
  void handOver() noexcept;
  // The bytes of a block, for a frame that is to carry them itself.
  OwnedBuffer bytes(const Entry& entry, std::uint64_t size) const;
  // No frame names the blocks any more.
  void takeBack() noexcept;

 private:
  enum class Blocks : std::uint8_t {
    kOurs,        // no frame with a number names them
    kHandedOver,  // the receiver frees them
    kOursInline,  // as kOurs, and a frame carries their bytes
    kTakenBack,  // as kHandedOver, but a frame carries their bytes: the receiver may never see them
  };
  void letGo() noexcept;

  std::shared_ptr<SharedArena> arena_;  // null: nothing is placed, or it moved on
  Blocks blocks_ = Blocks::kOurs;
  std::vector<Entry> entries_;
  std::vector<int> fds_;
};

}  // namespace weft::transport
