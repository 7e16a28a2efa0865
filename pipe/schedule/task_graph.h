// What is to be done, in which lane, after what.
//
// Tasks are numbered in the schedule's order. A lane does its tasks one at a time in that order; a
// task may wait for others, all of them before it in the order. So any graph that can be built can
// be run: by several lanes at once, or by one thread task after task.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace weft::pipe {

using TaskId = std::uint32_t;

// Built by one thread; afterwards only read.
class TaskGraph {
 public:
  explicit TaskGraph(std::size_t lanes) : lanes_(lanes) {}

  // The new task's number.
  TaskId add(std::size_t lane) {
    const auto task = static_cast<TaskId>(lane_of_.size());
    lane_of_.push_back(static_cast<std::uint32_t>(lane));
    lanes_[lane].push_back(task);
    waits_for_.push_back(0);
    next_.emplace_back();
    return task;
  }
  // `task` begins after `earlier` (a smaller number) has ended. What one lane does needs no such
  // word.
  void require(TaskId task, TaskId earlier) {
    if (lane_of_[task] == lane_of_[earlier]) return;
    next_[earlier].push_back(task);
    ++waits_for_[task];
  }

  std::size_t size() const { return lane_of_.size(); }
  std::size_t laneCount() const { return lanes_.size(); }
  std::size_t laneOf(TaskId task) const { return lane_of_[task]; }
  const std::vector<TaskId>& lane(std::size_t lane) const { return lanes_[lane]; }
  const std::vector<TaskId>& next(TaskId task) const { return next_[task]; }
  std::uint32_t waitsFor(TaskId task) const { return waits_for_[task]; }

 private:
  std::vector<std::uint32_t> lane_of_;
  std::vector<std::vector<TaskId>> lanes_;
  std::vector<std::uint32_t> waits_for_;
  std::vector<std::vector<TaskId>> next_;
};

}  // namespace weft::pipe
