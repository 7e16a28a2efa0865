// BlockAllocator: which ranges of an address space are in use. First fit at the lowest offset, so
// that memory that was touched before is used again; free neighbours are merged. It never touches
// the memory. Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace weft::transport {

class BlockAllocator {
 public:
  static constexpr std::uint64_t kUnit = 4096;  // offsets and sizes are multiples of it

  explicit BlockAllocator(std::uint64_t bytes);  // rounded down to kUnit

  // The offset of a free range of `size` bytes (rounded up), now in use; none: no such range.
  std::optional<std::uint64_t> take(std::uint64_t size);
  // What take() gave, once. Needs no memory.
  void give(std::uint64_t offset) noexcept;

  std::uint64_t freeBytes() const noexcept { return free_bytes_; }
  // Calls `visit` with the number of each piece of `chunk` bytes that is free as a whole, from the
  // end, because what is low is used first; until it returns false.
  template <typename Visit>
  void visitFreeChunks(std::uint64_t chunk, Visit visit) const {
    auto range = free_.rbegin();
    while (range != free_.rend()) {
      const auto [offset, size] = *range++;
      const std::uint64_t first = (offset + chunk - 1) / chunk;
      for (std::uint64_t end = (offset + size) / chunk; end > first; --end) {
        if (!visit(end - 1)) return;
      }
    }
  }

 private:
  using Ranges = std::map<std::uint64_t, std::uint64_t>;  // offset -> size
  Ranges free_;                                           // no two touch
  Ranges used_;
  std::uint64_t free_bytes_ = 0;
};

}  // namespace weft::transport
