#include "transport/base/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace weft::transport {
namespace {

std::atomic<std::uint32_t> forks{0};

void inChild() { forks.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

std::uint32_t ForkGuard::generation() noexcept {
  static const bool watched = ::pthread_atfork(nullptr, nullptr, inChild) == 0;
  static_cast<void>(watched);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace weft::transport
