#include "rpc_backend/threads/pool_threads.h"

#include <pthread.h>

#include <algorithm>

#include "rpc_backend/core/log.h"
#include "transport/base/os/system_error.h"
#include "transport/base/thrown.h"

namespace weft::rpc {

namespace {
constexpr const char* kRaiseLimit =
    "raise the limit on processes and threads (ulimit -u, or the container's)";
}  // namespace

void PoolThreads::setName(const std::string& thread_name) {
  pthread_setname_np(threads_.back().native_handle(), thread_name.c_str());
}

bool PoolThreads::startFailed(int error) {
  start_error_ = error;
  if (!std::exchange(warned_, true)) warning_due_ = error;
  return false;
}

transport::Error PoolThreads::takeStartFailure() {
  warning_due_ = 0;
  return {
      transport::ErrorCode::kSystem,
      "no thread can be started here (" + transport::errnoName(start_error_) + "); " + kRaiseLimit};
}

void PoolThreads::warn() {
  if (warning_due_.load(std::memory_order_relaxed) == 0) return;
  const int error = warning_due_.exchange(0);
  if (error == 0) return;
  static_cast<void>(transport::thrownBy([&] {
    logWarning("pool '" + name_ + "' cannot start another thread (" + transport::errnoName(error) +
               ") and goes on with those it has; " + kRaiseLimit);
  }));
}

void PoolThreads::leave(std::unique_lock<std::mutex>& lock) {
  const auto own = std::find_if(threads_.begin(), threads_.end(), [](const std::thread& thread) {
    return thread.get_id() == std::this_thread::get_id();
  });
  std::thread before = std::exchange(left_, std::move(*own));
  threads_.erase(own);
  lock.unlock();
  if (before.joinable()) before.join();
}

void PoolThreads::join(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds grace) {
  std::vector<std::thread> threads = std::exchange(threads_, {});
  if (left_.joinable()) threads.push_back(std::move(left_));
  const bool all_ended = ended_.wait_for(lock, grace, [&] { return alive_ == 0; });
  lock.unlock();
  if (!all_ended) {
    logWarning("a thread of pool '" + name_ + "' is still running user code after " +
               std::to_string(grace.count()) + " ms; nothing waits for it any more");
  }
  for (std::thread& thread : threads) {
    if (all_ended) {
      thread.join();
    } else {
      thread.detach();
    }
  }
}

}  // namespace weft::rpc
