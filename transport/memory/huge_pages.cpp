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
// What 512 small pages take: 0.3 to 0.6 ms. A huge one takes 0.05; but others' pages may have to be
// moved out of its way, and in a virtual machine whose host took the memory back it takes 1.2.
constexpr std::chrono::microseconds kSmallPages{500};
// What huge pages may have cost more than small ones would, all in all, before they are not asked
// for during a pause. In the next one they may cost half as much.
constexpr std::chrono::milliseconds kMostLost{150};
constexpr std::chrono::seconds kPause{10};  // twice as long each time
constexpr std::chrono::seconds kLongestPause{600};

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

// Whether huge pages should be asked for, by what they have cost so far. Any thread: what two of
// them tell at once may be counted as one.
class RetryBackoff {
 public:
  bool mayAsk() const noexcept {
    return Clock::now().time_since_epoch() >= not_before_.load(std::memory_order_relaxed);
  }
  void tell(int error, Clock::duration took, std::uint64_t pages) noexcept {
    if (error == EAGAIN) return;  // another thread was about to do the same
    if (error == EINVAL && !worked_.load(std::memory_order_relaxed)) {
      // An older kernel, or one with pages of another size.
      not_before_.store(Clock::duration::max(), std::memory_order_relaxed);
      return;
    }
    const Clock::duration lost = lost_.load(std::memory_order_relaxed) + took - kSmallPages * pages;
    if (error != 0 || lost > kMostLost) return pause();
    worked_.store(true, std::memory_order_relaxed);
    lost_.store(std::max(lost, Clock::duration::zero()), std::memory_order_relaxed);
    if (lost <= Clock::duration::zero()) pause_.store(kPause, std::memory_order_relaxed);
  }

 private:
  void pause() noexcept {
    const Clock::duration pause = pause_.load(std::memory_order_relaxed);
    not_before_.store((Clock::now() + pause).time_since_epoch(), std::memory_order_relaxed);
    pause_.store(std::min<Clock::duration>(2 * pause, kLongestPause), std::memory_order_relaxed);
    lost_.store(kMostLost / 2, std::memory_order_relaxed);
  }

  std::atomic<Clock::duration> not_before_{Clock::duration::min()};
  std::atomic<Clock::duration> pause_{kPause};
  std::atomic<Clock::duration> lost_{Clock::duration::zero()};
  std::atomic<bool> worked_{false};
};

}  // namespace

void* mapAligned(std::uint64_t bytes, int protection, int flags, int fd, std::uint64_t offset) {
  void* hint = nullptr;
  if (bytes >= kHuge) {
    // A place is sought and given free again: should another thread take it meanwhile, the mapping
    // is another one, and as good but for the huge pages.
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
  static RetryBackoff patience;
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const std::uint64_t before = roundUp(address, kHuge) - address;
  if (bytes < before + kHuge || !allowed()) return;
  std::byte* const end = at + before + (bytes - before) / kHuge * kHuge;
  for (std::byte* part = at + before; part < end && patience.mayAsk(); part += kPart) {
    const std::uint64_t size =
        std::min<std::uint64_t>(kPart, static_cast<std::uint64_t>(end - part));
    const Clock::time_point begin = Clock::now();
    const int error = collapse(part, size);
    patience.tell(error, Clock::now() - begin, size / kHuge);
  }
}

}  // namespace weft::transport
