#include "transport/arena_copy.h"

#include <cstring>

// Sanitizers see what memcpy touches, but not what an instruction does.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WEFT_HAVE_REP_MOVSB 1
#include <cpuid.h>
#endif

namespace weft::transport {

#ifdef WEFT_HAVE_REP_MOVSB
namespace {

// "Enhanced REP MOVSB": without it the instruction goes byte by byte.
bool hasFastRepMovsb() noexcept {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & (1U << 9)) != 0;
}

}  // namespace

void copyToArena(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  static const bool fast = hasFastRepMovsb();
  if (fast) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
  } else {
    std::memcpy(to, from, bytes);
  }
}
#else
void copyToArena(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}
#endif

}  // namespace weft::transport
