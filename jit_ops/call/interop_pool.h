// InteropPool: the pool of at::launch, whose tasks may wait for one another.
//
// Distributed autograd runs each part of a backward as a task of this pool: the part that waits for
// gradients from a worker, and the part that brings them. torch's own pool has a fixed number of
// threads, so as many waiting tasks as threads would wait forever. This one starts a further thread
// when a task says that it waits, so that as many tasks as at::get_num_interop_threads() can always
// run.
//
// Loading Weft registers it in the place of torch's pool, which torch makes when it is first used.
// A program that has used that before keeps it; then a wait that would take its last thread is
// refused.
//
// Threads: any.
#pragma once

#include <c10/core/thread_pool.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <queue>
#include <string>
#include <thread>
#include <vector>

namespace weft::ops {

// torch makes an InteropPool from now on, if it has made no pool yet.
void installInteropPool();

class InteropPool final : public c10::TaskThreadPoolBase {
 public:
  // Starts `size` threads; negative: as many as torch's pool has.
  explicit InteropPool(int size);
  // Drops the tasks that have not begun, and waits for the others.
  ~InteropPool() noexcept override;
  InteropPool(const InteropPool&) = delete;
  InteropPool& operator=(const InteropPool&) = delete;

  void run(std::function<void()> task) override;
  size_t size() const override { return size_; }
  size_t numAvailable() const override;
  bool inThreadPool() const override { return ofThisThread() == this; }

  // Null: this thread is none of such a pool.
  static InteropPool* ofThisThread() noexcept;
  // This thread's task begins to wait: another takes its turn. Throws std::system_error when no
  // thread can be started.
  void pause();
  // It goes on, also when that makes it one more than `size`.
  void resume();

 private:
  void start();  // with the lock
  void work();

  const std::size_t size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  std::size_t running_ = 0;  // tasks that do not wait
  std::size_t paused_ = 0;
  bool ended_ = false;
};

// While it lives, this thread waits for what other tasks of the pool may have to bring. Throws
// c10::Error when the program has torch's own pool, and the wait would take its last thread, or
// when no thread can be started. `what` is waited for, in the error.
class ScopedPoolWait {
 public:
  explicit ScopedPoolWait(const std::string& what);
  ~ScopedPoolWait();
  ScopedPoolWait(const ScopedPoolWait&) = delete;
  ScopedPoolWait& operator=(const ScopedPoolWait&) = delete;

 private:
  InteropPool* const pool_;
  const bool counted_;  // among the waits in torch's own pool
};

}  // namespace weft::ops
