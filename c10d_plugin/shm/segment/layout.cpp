#include "c10d_plugin/shm/segment/layout.h"

#include <algorithm>

#include "c10d_plugin/shm/segment/control.h"

namespace weft::collectives::shm {

Layout Layout::of(int ranks, std::size_t buffer_bytes, std::size_t small_bytes,
                  std::size_t heap_bytes) {
  // Smaller buffers cost more meetings; larger ones fall out of a second-level cache before they
  // are read again.
  constexpr std::size_t kBuffer = std::size_t{512} << 10;
  constexpr std::size_t kBufferOfMany = std::size_t{256} << 10;
  Layout layout;
  layout.ranks = ranks;
  const auto count = static_cast<std::size_t>(ranks);
  if (buffer_bytes == 0) buffer_bytes = ranks <= 8 ? kBuffer : kBufferOfMany;
  // Room for a cache line for each of the others.
  layout.buffer_bytes = roundUp(std::max(buffer_bytes, count * kCacheLine), kPage);
  if (small_bytes != 0) layout.small_bytes = roundUp(small_bytes, kPage);
  const std::size_t tables = std::size_t{2} * kSizeTables * count * sizeof(std::uint64_t);
  layout.control_bytes = roundUp(sizeof(Control) + tables, kPage);
  layout.heap_bytes = roundUp(heap_bytes, kHugePage);
  return layout;
}

}  // namespace weft::collectives::shm
