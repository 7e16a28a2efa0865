#include "transport/memory/fast_memcpy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

// Sanitizers see what memcpy touches, but not what an instruction does.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WEFT_HAVE_REP_MOVSB 1
#include <cpuid.h>
#include <emmintrin.h>
#endif

namespace weft::transport {

#ifdef WEFT_HAVE_REP_MOVSB
namespace {

constexpr std::size_t kLine = 64;  // of a cache, in bytes
// The processor's own prefetching ends with each page.
constexpr std::size_t kAhead = 4096;

// "Enhanced REP MOVSB": without it the instruction goes byte by byte.
bool hasFastRepMovsb() noexcept {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & (1U << 9)) != 0;
}

void copyPastCache(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes == 0) return;  // memcpy wants pointers even then
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kLine;
  const std::size_t head = std::min(bytes, misaligned == 0 ? 0 : kLine - misaligned);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(from + at) + kAhead, _MM_HINT_NTA);
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();  // streaming stores are not ordered before what tells the others of them
  std::memcpy(to + at, from + at, bytes - at);
}

}  // namespace

void fastMemcpy(std::byte* to, const std::byte* from, std::size_t bytes, CopyWay way) noexcept {
  if (bytes == 0) return;  // an empty buffer may be null, which memcpy must not be given
  static const bool fast = hasFastRepMovsb();
  if (way == CopyWay::kPastCache) {
    copyPastCache(to, from, bytes);
  } else if (fast) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
  } else {
    std::memcpy(to, from, bytes);
  }
}
#else
void fastMemcpy(std::byte* to, const std::byte* from, std::size_t bytes, CopyWay) noexcept {
  if (bytes == 0) return;
  std::memcpy(to, from, bytes);
}
#endif

}  // namespace weft::transport
