#include "transport/memory/pages.h"

#include <fcntl.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>

#include "transport/base/os/unique_fd.h"

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

// Errno.
int collapse(std::byte* at, std::uint64_t bytes) {
  // A piece without any page is passed over.
  for (std::uint64_t i = 0; i < bytes; i += kHuge) {
    if (::madvise(at + i, pageBytes(), MADV_POPULATE_WRITE) != 0) return errno;
  }
  return ::madvise(at, bytes, MADV_COLLAPSE) == 0 ? 0 : errno;
}

// Kernel's Documentation/admin-guide/mm/pagemap.rst: bit 63 present, 62 swapped, 61 of a file or
// shared. A page that is neither present nor swapped has the file's content when it is touched.
bool isOwn(std::uint64_t entry) noexcept { return (entry >> 62) != 0 && ((entry >> 61) & 1) == 0; }

}  // namespace

void* mapAligned(std::uint64_t bytes, int protection, int flags, int fd, std::uint64_t offset) {
  void* hint = nullptr;
  if (bytes >= kHuge) {
    // Finds a free range and releases it again. If another thread takes it meanwhile, the mapping
    // is elsewhere and lacks only the huge pages.
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
  static const bool allowed = !says("enabled", "[never]") && !says("shmem_enabled", "[deny]");
  static std::atomic<Clock::time_point> not_before{Clock::time_point::min()};
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const std::uint64_t before = roundUp(address, kHuge) - address;
  if (bytes < before + kHuge || !allowed) return;
  std::byte* const end = at + before + (bytes - before) / kHuge * kHuge;
  Clock::time_point now = Clock::now();
  for (std::byte* part = at + before; part < end && now >= not_before.load(); part += kPart) {
    const Clock::time_point began = now;
    const int error =
        collapse(part, std::min<std::uint64_t>(kPart, static_cast<std::uint64_t>(end - part)));
    now = Clock::now();
    // EAGAIN: another thread was about to do the same.
    if ((error != 0 && error != EAGAIN) || now - began > kTooSlow)
      not_before.store(now + kPauseAfterRefusal);
  }
}

bool hasOwnPages(const std::byte* data, std::size_t size) {
  // Opened each time: in a forked child an old one would show the parent's pages.
  const UniqueFd map(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!map.valid()) return true;
  std::array<std::uint64_t, 4096> entries;
  const auto first = reinterpret_cast<std::uintptr_t>(data) / pageBytes();
  const auto end =
      roundUp(reinterpret_cast<std::uintptr_t>(data) + size, pageBytes()) / pageBytes();
  for (auto page = first; page < end;) {
    const std::size_t count = std::min<std::size_t>(entries.size(), end - page);
    const ssize_t got = ::pread(map.get(), entries.data(), count * sizeof(entries[0]),
                                static_cast<off_t>(page * sizeof(entries[0])));
    if (got <= 0) return true;
    const std::size_t read = static_cast<std::size_t>(got) / sizeof(entries[0]);
    if (read == 0 || std::any_of(entries.begin(), entries.begin() + read, isOwn)) return true;
    page += read;
  }
  return false;
}

}  // namespace weft::transport
