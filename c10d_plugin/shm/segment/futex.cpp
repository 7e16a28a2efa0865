#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "c10d_plugin/shm/segment/segment.h"

namespace weft::collectives::shm {

// Not the PRIVATE forms: the word lies at another address in each process.
void sleepOn(Word& word, std::uint32_t value, std::chrono::nanoseconds longest) noexcept {
  timespec time{};
  time.tv_sec = static_cast<time_t>(longest.count() / 1'000'000'000);
  time.tv_nsec = static_cast<long>(longest.count() % 1'000'000'000);
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void wakeAll(Word& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace weft::collectives::shm
