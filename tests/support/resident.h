// The memory of this process that it has touched, for tests that claims alone take none.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace weft {

// AddressSanitizer keeps what is freed for a while, so that its use is found.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kFreedMemoryStays = true;
#else
inline constexpr bool kFreedMemoryStays = false;
#endif

inline std::size_t residentBytes() {
  std::size_t pages = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace weft
