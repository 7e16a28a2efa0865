#include "transport/memory/block_allocator.h"

#include <iterator>
#include <utility>

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
    if (bytes > wanted) free_.emplace(offset + wanted, bytes - wanted);
    auto block = free_.extract(range);
    block.mapped() = wanted;
    used_.insert(std::move(block));
    free_bytes_ -= wanted;
    return offset;
  }
  return std::nullopt;
}

void BlockAllocator::give(std::uint64_t offset) noexcept {
  auto block = used_.extract(offset);
  WEFT_CHECK(!block.empty(), "a block is given back once");
  free_bytes_ += block.mapped();
  auto behind = free_.lower_bound(offset);
  if (behind != free_.end() && behind->first == offset + block.mapped()) {
    block.mapped() += behind->second;
    behind = free_.erase(behind);
  }
  const auto before = behind == free_.begin() ? free_.end() : std::prev(behind);
  if (before != free_.end() && before->first + before->second == offset) {
    before->second += block.mapped();
  } else {
    free_.insert(std::move(block));
  }
}

}  // namespace weft::transport
