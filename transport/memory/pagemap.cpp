#include "transport/memory/pagemap.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "transport/base/unique_fd.h"
#include "transport/memory/pages.h"

namespace weft::transport {
namespace {

// Kernel's Documentation/admin-guide/mm/pagemap.rst: bit 63 present, 62 swapped, 61 of a file or
// shared. A page that is neither present nor swapped has the file's content when it is touched.
bool isOwn(std::uint64_t entry) noexcept { return (entry >> 62) != 0 && ((entry >> 61) & 1) == 0; }

}  // namespace

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
