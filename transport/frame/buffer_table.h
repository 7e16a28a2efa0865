// BufferTable: the part of a frame that says how long each buffer is and where its bytes are.
//
// It grows only as its bytes arrive, and never beyond what the frame's head announced.
// Threads: one at a time. Failure: an Error for a table that contradicts its head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/arena/arena_layout.h"
#include "transport/base/error.h"
#include "transport/frame/frame.h"

namespace weft::transport {

class BufferTable {
 public:
  // A buffer whose bytes are in shared or exported memory.
  struct Placed {
    std::uint32_t buffer = 0;
    bool exported = false;  // else in the arena
    ArenaDescriptor where;
  };

  void begin(const FrameHead& head);
  // Takes what it needs from the front of `input`. True: the table is whole.
  Result<bool> read(std::span<const std::byte>& input);

  const std::vector<std::uint64_t>& sizes() const noexcept { return sizes_; }
  const std::vector<Placed>& placed() const noexcept { return placed_; }
  // The bytes of the buffers that are in this frame.
  std::uint64_t inlineBytes() const noexcept { return inline_bytes_; }

 private:
  Error addEntry(std::uint64_t entry);

  std::uint32_t count_ = 0;
  std::uint64_t announced_ = 0;  // bytes
  std::uint64_t sum_ = 0;
  std::vector<std::uint64_t> sizes_;
  std::uint64_t inline_bytes_ = 0;
  std::vector<Placed> placed_;
  std::size_t located_ = 0;  // of placed_, those whose descriptor has come
};

}  // namespace weft::transport
