// The machine's memory and its pages: how much there is, huge pages, and which pages of a mapping
// have become this process's own. Any thread.
//
// Huge pages for memory that processes share: nearly all systems leave it on small pages
// (shmem_enabled: never), whatever a program advises, but collapse it into huge ones on request
// (MADV_COLLAPSE, Linux 6.1). Fresh memory comes faster that way, the other process has fewer page
// faults, and copying is faster (docs/reference/performance.md). Without them all works the same.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "transport/base/round_up.h"
#include "transport/memory/control_group.h"

// Linux 5.14, the last one 6.1; older headers don't have them.
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace weft::transport {

// The unit in which large memory is obtained and given back: a huge page of x86-64.
inline constexpr std::uint64_t kMemoryChunk = std::uint64_t{2} << 20;

inline std::uint64_t pageBytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// The memory that there is for this process: all of the machine's, or what its control group may
// take where that is less (a container). 0: the system does not say.
inline std::uint64_t machineBytes() {
  static const std::uint64_t bytes = [] {
    const auto all = static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
    const std::uint64_t group = controlGroupBytes();
    return all == 0 ? group : std::min(all * pageBytes(), group == 0 ? ~std::uint64_t{0} : group);
  }();
  return bytes;
}

// A share of it at most: on a small machine one use must leave room for others.
inline std::uint64_t atMostHalf(std::uint64_t wanted) {
  return machineBytes() == 0 ? wanted : std::min(wanted, machineBytes() / 2);
}
inline std::uint64_t atMostQuarter(std::uint64_t wanted) {
  return machineBytes() == 0 ? wanted : std::min(wanted, machineBytes() / 4);
}

// As mmap(), if possible at an address where the file's huge pages can be mapped as such: at the
// same distance from a multiple of their size as `offset`. Where the system gives huge pages on
// advice (mostly to memory of this process alone), it has them from the first touch.
void* mapAligned(std::uint64_t bytes, int protection, int flags, int fd, std::uint64_t offset = 0);

// Obtains the whole pieces of 2 MiB within a shared mapping of a memfd as huge pages, or parts of
// them, or nothing: the caller obtains all of it next. Does nothing for a while after the system
// refused or was slow, nor where it is configured to have none (`enabled` is never, or
// `shmem_enabled` deny, below /sys/kernel/mm/transparent_hugepage).
void makeHuge(std::byte* at, std::uint64_t bytes) noexcept;

// Whether a page of a private file mapping was written, however that was done: it is this process's
// own then. Also true when the kernel does not tell.
bool hasOwnPages(const std::byte* data, std::size_t size);

}  // namespace weft::transport
