#include "transport/memory/block_allocator.h"

#include <iterator>

#include "transport/base/check.h"
#include "transport/base/round_up.h"

namespace weft::transport {
BlockAllocator::BlockAllocator(std::uint64_t bytes) : free_bytes_(bytes / kUnit * kUnit) {
  if (free_bytes_ > 0) free_.emplace(0, free_bytes_);
}

std::optional<std::uint64_t> BlockAllocator::take(std::uint64_t size) {
  if (size == 0 || size > free_bytes_) return std::nullopt;
  const std::uint64_t wanted = roundUp(size, kUnit);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, bytes] = *range;
    if (bytes < wanted) continue;
    const auto after = free_.erase(range);
    if (bytes > wanted) free_.emplace_hint(after, offset + wanted, bytes - wanted);
    free_bytes_ -= wanted;
    return offset;
  }
  return std::nullopt;
}

void BlockAllocator::give(std::uint64_t offset, std::uint64_t size) {
  std::uint64_t bytes = roundUp(size, kUnit);
  free_bytes_ += bytes;
  const auto next = free_.lower_bound(offset);
  WEFT_CHECK(next == free_.end() || next->first >= offset + bytes, "a block is given back once");
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    const std::uint64_t end = before->first + before->second;
    WEFT_CHECK(end <= offset, "a block is given back once");
    if (end == offset) {
      offset = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    free_.erase(next);
  }
  free_.emplace(offset, bytes);
}

}  // namespace weft::transport
