#include "transport/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>

#include "transport/pages.h"

namespace weft::transport {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kHuge = kMemoryChunk;
constexpr std::uint64_t kPart = 8 * kHuge;  // asked for at once
// Finding one may mean moving others' pages out of the way. One takes 0.05 ms, 512 small ones 0.3
// to 0.6; in a virtual machine whose host has yet to find that memory 1 ms, once.
constexpr std::chrono::milliseconds kPatience{2};
constexpr std::chrono::seconds kPause{10};

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

}  // namespace

void* mapAligned(std::uint64_t bytes, int protection, int flags, int fd, std::uint64_t offset) {
  if (bytes < kHuge)
    return ::mmap(nullptr, bytes, protection, flags, fd, static_cast<off_t>(offset));
  bytes = roundUp(bytes, pageBytes());
  const std::uint64_t room = bytes + kHuge;
  void* const found =
      ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return MAP_FAILED;
  auto* const first = static_cast<std::byte*>(found);
  const std::uint64_t before = (offset - reinterpret_cast<std::uintptr_t>(found)) % kHuge;
  std::byte* const at = first + before;
  void* const mapped =
      ::mmap(at, bytes, protection, flags | MAP_FIXED, fd, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) {
    const int error = errno;
    ::munmap(first, room);
    errno = error;
    return MAP_FAILED;
  }
  if (before > 0) ::munmap(first, before);
  if (before < kHuge) ::munmap(at + bytes, kHuge - before);
  ::madvise(mapped, bytes, MADV_HUGEPAGE);
  return mapped;
}

void makeHuge(std::byte* at, std::uint64_t bytes) noexcept {
  static std::atomic<Clock::duration> not_before{Clock::duration::min()};
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const std::uint64_t before = roundUp(address, kHuge) - address;
  if (bytes < before + kHuge || !allowed()) return;
  std::byte* const end = at + before + (bytes - before) / kHuge * kHuge;
  for (std::byte* part = at + before; part < end; part += kPart) {
    const Clock::time_point begin = Clock::now();
    if (begin.time_since_epoch() < not_before.load(std::memory_order_relaxed)) return;
    const std::uint64_t size =
        std::min<std::uint64_t>(kPart, static_cast<std::uint64_t>(end - part));
    const int error = collapse(part, size);
    const Clock::time_point now = Clock::now();
    if (error == EINVAL) {  // an older kernel, or one with pages of another size
      not_before.store(Clock::duration::max(), std::memory_order_relaxed);
    } else if ((error != 0 && error != EAGAIN) || now - begin > kPatience * (size / kHuge)) {
      // Not EAGAIN: another thread was about to do the same.
      not_before.store((now + kPause).time_since_epoch(), std::memory_order_relaxed);
    }
  }
}

}  // namespace weft::transport
