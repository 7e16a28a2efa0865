// How operations move data, for the files that implement them: included by those only.
#pragma once

#include <algorithm>
#include <cstring>

#include "c10d_plugin/shm/shm_collectives.h"

namespace weft::collectives {

template <typename Part>
void ShmCollectives::tell(shm::SizeTable table, std::span<const Part> parts, bool equal_on_all) {
  std::uint64_t* const sizes = segment_->sizes(rank_, parity_, table);
  for (std::size_t i = 0; i < static_cast<std::size_t>(size_); ++i) {
    sizes[i] = i < parts.size() ? parts[i].size() : 0;
    if (equal_on_all) record_.shapes = shm::digest(record_.shapes, sizes[i]);
  }
}

template <typename Learn, typename Consume>
Error ShmCollectives::exchange(std::span<const ConstBytes> parts, const BufferSlot& place,
                               Learn&& learn, Consume&& consume) {
  if (place.small || !offer(parts)) {
    if (!place.small) {
      if (Error error = needBuffers()) return error;
    }
    writePieces(parts, place, 0);
  }
  if (Error error = meet()) return error;
  const std::size_t pieces = learn();
  for (std::size_t next = 1; next <= pieces; ++next) {
    if (next < pieces && !record_.direct) writePieces(parts, place, next);
    if (Error error = consume(next - 1)) return error;
    if (next == pieces) break;
    if (Error error = meet()) return error;
  }
  // Nobody touches its data before the last who reads them where they lie is through.
  return offers_ != 0 ? meet() : Error::ok();
}

// The own part, from here to here. May be in place.
inline void copyOwn(ConstBytes from, Bytes to) {
  if (!from.empty() && from.data() != to.data()) std::memmove(to.data(), from.data(), from.size());
}

template <typename Part>
std::size_t largest(std::span<const Part> parts) {
  std::size_t most = 0;
  for (const Part& part : parts)
    most = std::max(most, part.size());
  return most;
}

}  // namespace weft::collectives
