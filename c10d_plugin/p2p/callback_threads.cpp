#include "c10d_plugin/p2p/callback_threads.h"

#include <pthread.h>

#include <atomic>
#include <thread>
#include <utility>

#include "transport/base/deadline.h"
#include "transport/base/fork_guard.h"
#include "transport/base/thrown.h"

namespace weft::process_group {

namespace {

std::atomic<int> running{0};
void forget() { running.store(0); }

}  // namespace

bool runOnOwnThread(std::function<void()> callbacks) {
  static const bool watched = ::pthread_atfork(nullptr, nullptr, forget) == 0;
  static_cast<void>(watched);
  running.fetch_add(1);
  const auto thrown = transport::thrownBy([&] {
    std::thread([callbacks = std::move(callbacks), process = transport::ForkGuard()]() mutable {
      callbacks();
      callbacks = nullptr;  // it may hold what needs the GIL to be released
      if (process.inOwnProcess()) running.fetch_sub(1);  // else a callback has forked
    }).detach();
  });
  if (thrown) running.fetch_sub(1);
  return !thrown;
}

bool waitForCallbacks(std::chrono::milliseconds limit) {
  const auto deadline = transport::deadlineAfter(limit);
  while (running.load() != 0) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace weft::process_group
