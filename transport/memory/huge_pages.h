// Huge pages for memory that processes share, where the system has some.
//
// Nearly all systems leave shared memory on small pages (shmem_enabled: never), whatever a program
// advises, but put it together into huge ones when it is asked to outright (MADV_COLLAPSE, Linux
// 6.1). Fresh memory is had faster that way, too: 48 MiB in 2.2 ms instead of 14, because a huge
// page is cleared and entered once instead of 512 times; the other process, which maps it, is
// spared as many page faults; and copying into it is a sixth faster (docs/reference/performance.md)
//
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::transport {

// As mmap(), if possible at an address where the huge pages of the file can be those of the memory:
// as far from a border of theirs as `offset` is. What the system gives huge pages for the asking
// has them from the first touch: memory of this process alone, mostly. MAP_FAILED with errno.
void* mapAligned(std::uint64_t bytes, int protection, int flags, int fd, std::uint64_t offset = 0);

// Obtains the whole pieces of 2 MiB within a shared mapping of a memfd as huge pages, or parts of
// them, or nothing: whoever needs the memory populates all of it next. Does nothing for
// a while after the system had none to give, or took longer for them than small ones take; or where
// it is told to have none (`enabled` is never, or `shmem_enabled` deny, below
// /sys/kernel/mm/transparent_hugepage).
void makeHuge(std::byte* at, std::uint64_t bytes) noexcept;

}  // namespace weft::transport
