// What is to be done, in which worker, after what.
//
// Tasks are numbered in the schedule's order. A worker does its tasks one at a time in that order;
// a task may wait for others, all of them before it in the order. So any graph that can be built
// can be run: by several workers at once, or by one thread task after task.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace weft::pipe {

using TaskId = std::uint32_t;

// Built by one thread; afterwards only read.
class TaskGraph {
 public:
  explicit TaskGraph(std::size_t workers) : workers_(workers) {}

  // The new task's number.
  TaskId add(std::size_t worker) {
    const auto task = static_cast<TaskId>(worker_of_.size());
    worker_of_.push_back(static_cast<std::uint32_t>(worker));
    workers_[worker].push_back(task);
    waits_for_.push_back(0);
    next_.emplace_back();
    return task;
  }
  // `task` begins after `earlier` (a smaller number) has ended. What one worker does needs no such
  // word.
  void require(TaskId task, TaskId earlier) {
    if (worker_of_[task] == worker_of_[earlier]) return;
    next_[earlier].push_back(task);
    ++waits_for_[task];
  }

  std::size_t size() const { return worker_of_.size(); }
  std::size_t laneCount() const { return workers_.size(); }
  std::size_t laneOf(TaskId task) const { return worker_of_[task]; }
  const std::vector<TaskId>& worker(std::size_t worker) const { return workers_[worker]; }
  const std::vector<TaskId>& next(TaskId task) const { return next_[task]; }
  std::uint32_t waitsFor(TaskId task) const { return waits_for_[task]; }

 private:
  std::vector<std::uint32_t> worker_of_;
  std::vector<std::vector<TaskId>> workers_;
  std::vector<std::uint32_t> waits_for_;
  std::vector<std::vector<TaskId>> next_;
};

}  // namespace weft::pipe
