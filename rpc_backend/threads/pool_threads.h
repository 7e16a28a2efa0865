// PoolThreads: the threads of a WorkerPool, from their start to their end.
//
// A thread that cannot be started (the system's limit is reached) is warned of once. A thread that
// leaves before the pool stops is joined by the next one that leaves, or by join().
//
// Threads: any, with the pool's lock, which is the `mutex` of start(); warn(): without it.
// Ownership: each thread keeps its body, which keeps this. Failure: start() says so.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "transport/base/error.h"

namespace weft::rpc {

class PoolThreads {
 public:
  // `name` is given to the threads (15 characters are shown by the system).
  explicit PoolThreads(std::string name) : name_(std::move(name)) {}

  const std::string& name() const noexcept { return name_; }
  std::size_t alive() const noexcept { return alive_; }

  // False: no thread can be started now, and warn() should follow without the lock.
  template <typename Body>
  bool start(std::mutex& mutex, const Body& body, const char* suffix) {
    try {
      const std::string thread_name = (name_ + suffix).substr(0, 15);
      threads_.emplace_back([this, &mutex, body] {
        body();
        const std::lock_guard lock(mutex);
        --alive_;
        ended_.notify_all();
      });
      setName(thread_name);
    } catch (const std::system_error& error) {
      return startFailed(error.code().value());
    } catch (const std::bad_alloc&) {
      return startFailed(ENOMEM);
    }
    start_error_ = 0;
    ++alive_;
    return true;
  }
  bool lastStartFailed() const noexcept { return start_error_ != 0; }
  // After a start that failed: why, for a caller that cannot go on without. warn() has no need to.
  transport::Error takeStartFailure();
  // Warns of the first start that failed, once. Throws nothing.
  void warn();

  // The calling thread, one of these, is about to end. Releases the lock.
  void leave(std::unique_lock<std::mutex>& lock);
  // Waits until all have ended, and joins them. Where one has not ended after `grace`, all are
  // detached, with a warning. Releases the lock.
  void join(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds grace);

 private:
  void setName(const std::string& thread_name);
  bool startFailed(int error);

  const std::string name_;
  std::vector<std::thread> threads_;
  std::thread left_;       // the last that left; the next to leave joins it
  std::size_t alive_ = 0;  // begun, and not ended
  std::condition_variable ended_;
  int start_error_ = 0;              // errno of the last start, 0: it went well
  bool warned_ = false;              // that one failed
  std::atomic<int> warning_due_{0};  // the errno to warn of, 0: nothing
};

}  // namespace weft::rpc
