// One job on the workers' threads: which tasks may begin, the first failure, and its end.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "pipe/schedule/schedule.h"
#include "pipe/schedule/stage_executor.h"
#include "transport/base/spin.h"

namespace weft::pipe {

// Shared by the caller and the workers: one of these may still be leaving when the caller has gone.
class Execution {
 public:
  Execution(const Schedule& schedule, Job& job, std::size_t workers)
      : schedule_(schedule), job_(job), waits_for_(schedule.size()), workers_left_(workers) {
    for (TaskId task = 0; task < schedule.size(); ++task)
      waits_for_[task].store(schedule.waitsFor(task), std::memory_order_relaxed);
  }

  // A worker's share of the job, on its thread.
  void work(std::size_t worker, transport::AdaptiveSpin& spin) {
    job_.worker(worker, [&] {
      for (const TaskId task : schedule_.tasksOf(worker)) {
        await(task, spin);
        runOrSkip(task);
        for (const TaskId next : schedule_.next(task)) {
          if (waits_for_[next].fetch_sub(1, std::memory_order_acq_rel) == 1)
            waits_for_[next].notify_one();
        }
      }
    });
    const std::lock_guard lock(mutex_);
    if (--workers_left_ == 0) ended_.notify_all();
  }

  // Waits for all workers; throws the earliest task's exception, or what the hook threw.
  void wait(const ThreadHooks& hooks) {
    bool cancelled = false;
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, kInterruptEvery, [&] { return workers_left_ == 0; })) {
      if (!hooks.interrupted || cancelled) continue;
      lock.unlock();
      try {
        hooks.interrupted();
      } catch (...) {
        cancelled = true;
        fail(0, std::current_exception());
      }
      lock.lock();
    }
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  static constexpr std::chrono::milliseconds kInterruptEvery{50};
  static constexpr TaskId kNone = std::numeric_limits<TaskId>::max();

  void await(TaskId task, transport::AdaptiveSpin& spin) {
    auto& left = waits_for_[task];
    const auto ready = [&] { return left.load(std::memory_order_acquire) == 0; };
    if (ready() || spin.until(ready)) return;
    for (auto seen = left.load(std::memory_order_acquire); seen != 0;
         seen = left.load(std::memory_order_acquire)) {
      left.wait(seen, std::memory_order_acquire);
    }
  }

  void runOrSkip(TaskId task) {
    if (task >= first_failed_.load(std::memory_order_acquire)) return job_.skip(task);
    try {
      job_.run(task);
    } catch (...) {
      fail(task, std::current_exception());
    }
  }

  void fail(TaskId task, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (task >= first_failed_.load(std::memory_order_relaxed)) return;
    first_failed_.store(task, std::memory_order_release);
    failure_.swap(error);
  }

  const Schedule& schedule_;
  Job& job_;
  std::vector<std::atomic<std::uint32_t>> waits_for_;
  std::atomic<TaskId> first_failed_{kNone};  // tasks from here on are skipped
  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t workers_left_;
  std::exception_ptr failure_;
};

}  // namespace weft::pipe
