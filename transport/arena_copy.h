// Copying into memory that another core has read.
//
// A block that comes back from the receiver lies in that core's caches. Ordinary stores first fetch
// each line from there: measured 9 GB/s for 1 to 4 MiB, where `rep movsb` writes whole lines
// without fetching them: 47 GB/s (and the receiver, reading after it, gets 23 instead of 8).
// Streaming stores come to 37, but push the bytes out to memory, where the receiver waits for them.
// memcpy itself chooses `rep movsb` for less than about a megabyte only.
#pragma once

#include <cstddef>

namespace weft::transport {

// As memcpy. `to` should be aligned to a cache line, else the instruction can be slow.
void copyToArena(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

}  // namespace weft::transport
