// Which tasks of a job have ended: each by itself, and all from the first without a gap.
//
// What a task does only once all tasks before it have ended happens in the schedule's order and one
// task at a time, whatever threads run them. Stages draw random numbers this way.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <vector>

#include "pipe/schedule/schedule.h"
#include "transport/base/spin.h"

namespace weft::pipe {

// Any thread may call it.
class TaskOrder {
 public:
  explicit TaskOrder(std::size_t tasks) : ended_(tasks) {}

  // `task` has ended, or will not run. Once per task.
  void end(TaskId task) {
    ended_[task].store(1);
    ended_[task].notify_all();
    TaskId front = front_.load();
    while (front < ended_.size() && ended_[front].load() != 0) {
      if (front_.compare_exchange_weak(front, front + 1)) ++front;
    }
    if (waiting_.load() == 0) return;
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  void awaitEndOf(TaskId task, transport::AdaptiveSpin& spin) const {
    const auto ended = [&] { return ended_[task].load(std::memory_order_acquire) != 0; };
    if (!ended() && !spin.until(ended)) ended_[task].wait(0, std::memory_order_acquire);
  }

  // True when every task before this one has ended.
  bool isTurnOf(TaskId task) const { return front_.load() >= task; }

  // Waits for that. False if it took longer than `at_most`.
  bool awaitTurnOf(TaskId task, std::chrono::seconds at_most) {
    if (isTurnOf(task)) return true;
    std::unique_lock lock(mutex_);
    ++waiting_;
    const bool came = changed_.wait_for(lock, at_most, [&] { return isTurnOf(task); });
    --waiting_;
    return came;
  }

 private:
  std::vector<std::atomic<int>> ended_;  // an int, as a futex is one
  std::atomic<TaskId> front_{0};         // every task before it has ended
  std::atomic<unsigned> waiting_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace weft::pipe
