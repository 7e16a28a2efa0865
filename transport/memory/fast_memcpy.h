// Copying into memory that another core has read.
//
// A block that comes back from the receiver lies in that core's caches. Ordinary stores first fetch
// each line from there: measured 9 GB/s for 1 to 4 MiB, where `rep movsb` writes whole lines
// without fetching them: 47 GB/s (and the receiver, reading after it, gets 23 instead of 8).
// memcpy itself chooses `rep movsb` for less than about a megabyte only.
//
// Streaming stores push the bytes out to memory: 30 GB/s. That is what is left anyway for a message
// which with its copy exceeds the last cache, and there they do better, because they leave the
// cache to the source: 46 MB by one thread 26 instead of 20 GB/s, by two 45 instead of 34; and a
// receiver that reads them takes no longer.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::transport {

enum class CopyWay : std::uint8_t { kThroughCache, kPastCache };

// The better one for a message of so many bytes. Caches of 32 MiB were measured; how large this
// machine's are is not to be had reliably (a virtual one may tell the whole processor's).
constexpr CopyWay wayFor(std::size_t bytes) noexcept {
  return bytes < (std::size_t{24} << 20) ? CopyWay::kThroughCache : CopyWay::kPastCache;
}

// As memcpy, but a pointer to no bytes may be null. `to` should be aligned to a cache line, else
// the instruction can be slow.
void fastMemcpy(std::byte* to, const std::byte* from, std::size_t bytes,
                CopyWay way = CopyWay::kThroughCache) noexcept;

}  // namespace weft::transport
