// Copying into memory that another core has read.
//
// A block that comes back from the receiver is in that core's caches. Ordinary stores first fetch
// each line from there; `rep movsb` writes whole lines without fetching them, and is several times
// as fast. memcpy itself chooses it for less than about a megabyte only.
//
// Streaming stores push the bytes out to memory. They are faster for a message that with its copy
// exceeds the last cache, because they leave the cache to the source. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::transport {

enum class CopyWay : std::uint8_t { kThroughCache, kPastCache };

// The better one for a message of so many bytes, with a last cache of about 32 MiB. (A machine does
// not tell the size of its own reliably: a virtual one may give the whole processor's.)
constexpr CopyWay wayFor(std::size_t bytes) noexcept {
  return bytes < (std::size_t{24} << 20) ? CopyWay::kThroughCache : CopyWay::kPastCache;
}

// As memcpy, but a pointer to no bytes may be null. `to` should be aligned to a cache line, else
// the instruction can be slow.
void fastMemcpy(std::byte* to, const std::byte* from, std::size_t bytes,
                CopyWay way = CopyWay::kThroughCache) noexcept;

}  // namespace weft::transport
