// The machine's memory and its pages. Any thread.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "transport/base/round_up.h"

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

// All memory of the machine; 0: the system does not say.
inline std::uint64_t machineBytes() {
  static const std::uint64_t bytes =
      static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES))) * pageBytes();
  return bytes;
}

// At most a quarter of the machine's memory: on a small machine one use must leave room for others.
inline std::uint64_t atMostQuarter(std::uint64_t wanted) {
  return machineBytes() == 0 ? wanted : std::min(wanted, machineBytes() / 4);
}

}  // namespace weft::transport
