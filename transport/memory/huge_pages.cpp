#include "transport/memory/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>

#include "transport/memory/pages.h"

namespace weft::transport {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kHuge = kMemoryChunk;
constexpr std::uint64_t kPart = 4 * kHuge;  // asked for at once
// Huge pages that take longer than this, for one part, are as good as refused: the system moves
// others' pages out of their way.
constexpr std::chrono::milliseconds kTooSlow{20};
constexpr std::chrono::seconds kPauseAfterRefusal{10};

bool says(const char* setting, const char* what) {
  std::ifstream file(std::string("/sys/kernel/mm/transparent_hugepage/") + setting);
  std::string text;
  std::getline(file, text);
  return text.find(what) != std::string::npos;
}

bool allowed() {
  static const bool answer = !says("enabled", "[never]") && !says("shmem_enabled", "[deny]");
  return answer;
}

// Errno.
int collapse(std::byte* at, std::uint64_t bytes) {
  // A piece without any page is passed over.
  for (std::uint64_t i = 0; i < bytes; i += kHuge) {
    if (::madvise(at + i, pageBytes(), MADV_POPULATE_WRITE) != 0) return errno;
  }
  return ::madvise(at, bytes, MADV_COLLAPSE) == 0 ? 0 : errno;
}

// Since the last refusal: when to ask again.
std::atomic<Clock::duration> not_before{Clock::duration::min()};

bool mayAsk() noexcept {
  return Clock::now().time_since_epoch() >= not_before.load(std::memory_order_relaxed);
}

}  // namespace

void* mapAligned(std::uint64_t bytes, int protection, int flags, int fd, std::uint64_t offset) {
  void* hint = nullptr;
  if (bytes >= kHuge) {
    // Finds a free range and releases it again. If another thread takes it meanwhile, the mapping
    // lies elsewhere and lacks only the huge pages.
    const std::uint64_t room = roundUp(bytes, pageBytes()) + kHuge;
    void* const found =
        ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found != MAP_FAILED) {
      ::munmap(found, room);
      hint = static_cast<std::byte*>(found) +
             (offset - reinterpret_cast<std::uintptr_t>(found)) % kHuge;
    }
  }
  void* const mapped = ::mmap(hint, bytes, protection, flags, fd, static_cast<off_t>(offset));
  if (mapped != MAP_FAILED && bytes >= kHuge) ::madvise(mapped, bytes, MADV_HUGEPAGE);
  return mapped;
}

void makeHuge(std::byte* at, std::uint64_t bytes) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const std::uint64_t before = roundUp(address, kHuge) - address;
  if (bytes < before + kHuge || !allowed()) return;
  std::byte* const end = at + before + (bytes - before) / kHuge * kHuge;
  for (std::byte* part = at + before; part < end && mayAsk(); part += kPart) {
    const std::uint64_t size =
        std::min<std::uint64_t>(kPart, static_cast<std::uint64_t>(end - part));
    const Clock::time_point begin = Clock::now();
    const int error = collapse(part, size);
    const Clock::time_point now = Clock::now();
    // EAGAIN: another thread was about to do the same.
    if ((error != 0 && error != EAGAIN) || now - begin > kTooSlow) {
      not_before.store((now + kPauseAfterRefusal).time_since_epoch(), std::memory_order_relaxed);
    }
  }
}

}  // namespace weft::transport
