// Huge pages for memory that processes share, where the system has some.
//
// Nearly all systems leave shared memory on small pages (shmem_enabled: never), whatever a program
// advises, but collapse it into huge ones on request (MADV_COLLAPSE, Linux 6.1). Fresh memory comes
// faster that way, because a huge page is cleared and mapped once instead of 512 times; the other
// process has fewer page faults, and copying is faster (docs/reference/performance.md).
//
// Threads: any. Failure: of mapAligned() as of mmap(); without huge pages memory works all the
// same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::transport {

// As mmap(), if possible at an address where the file's huge pages can be mapped as such: at the
// same distance from a multiple of their size as `offset`. Where the system gives huge pages on
// advice (mostly to memory of this process alone), it has them from the first touch.
void* mapAligned(std::uint64_t bytes, int protection, int flags, int fd, std::uint64_t offset = 0);

// Obtains the whole pieces of 2 MiB within a shared mapping of a memfd as huge pages, or parts of
// them, or nothing: the caller populates all of it next. Does nothing for a while after the system
// refused or was slow, nor where it is configured to have none (`enabled` is never, or
// `shmem_enabled` deny, below /sys/kernel/mm/transparent_hugepage).
void makeHuge(std::byte* at, std::uint64_t bytes) noexcept;

}  // namespace weft::transport
