#include "c10d_plugin/p2p/callback_threads.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "transport/base/fork_guard.h"
#include "transport/base/thrown.h"

namespace weft::process_group {

namespace {

class Running {
 public:
  // This process's. Never freed: its threads may outlive all else.
  static Running& get() {
    static std::atomic<Running*> current{nullptr};
    Running* found = current.load(std::memory_order_acquire);
    while (found == nullptr || !found->process_.inOwnProcess()) {
      auto fresh = std::make_unique<Running>();
      if (current.compare_exchange_strong(found, fresh.get())) return *fresh.release();
    }
    return *found;
  }

  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void remove() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) none_left_.notify_all();
  }
  bool waitForNone(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return none_left_.wait_for(lock, limit, [this] { return count_ == 0; });
  }

 private:
  const transport::ForkGuard process_;
  std::mutex mutex_;
  std::condition_variable none_left_;
  std::size_t count_ = 0;
};

}  // namespace

bool runOnOwnThread(std::function<void()> callbacks) {
  Running& running = Running::get();
  running.add();
  const auto thrown = transport::thrownBy([&] {
    std::thread([&running, callbacks = std::move(callbacks)]() mutable {
      callbacks();
      callbacks = nullptr;  // it may hold what needs the GIL to be released
      running.remove();
    }).detach();
  });
  if (thrown) running.remove();
  return !thrown;
}

bool waitForCallbacks(std::chrono::milliseconds limit) { return Running::get().waitForNone(limit); }

}  // namespace weft::process_group
