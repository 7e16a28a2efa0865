// A schedule: the tasks of one mini-batch in order, each with its worker and what it waits for.
//
// GPipe's (Huang et al. 2019; torchgpipe, Kim et al. 2020): m micro-batches pass n stages. In clock
// cycle k the cells (i, j) with i + j = k run, micro-batch i in stage j; the cells of one cycle do
// not depend on each other:
//
//   k   stage 0  stage 1  stage 2
//   0   (0,0)
//   1   (1,0)    (0,1)
//   2   (2,0)    (1,1)    (0,2)
//   3            (2,1)    (1,2)
//   4                     (2,2)
//
// The order is cycle by cycle, stage 0 first. Random numbers are drawn in it, and the first of
// several exceptions is found in it. The backward runs the cells in the reverse order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace weft::pipe {

using TaskId = std::uint32_t;

struct CellIndex {
  std::size_t micro_batch = 0;
  std::size_t stage = 0;
  bool operator==(const CellIndex&) const = default;
};

enum class TaskKind : std::uint8_t { kForward, kRecompute, kBackward };
inline constexpr std::size_t kTaskKinds = 3;

struct Task {
  CellIndex cell;
  TaskKind kind = TaskKind::kForward;
  std::vector<TaskId> needs = {};  // tasks of other workers that have to end before it begins
};

// Tasks are numbered in the schedule's order. A worker runs its tasks one at a time in that order,
// and a task waits only for tasks before it. So every schedule can be run, by several workers at
// once or by one thread task after task. Built by one thread; only read afterwards.
class Schedule {
 public:
  // Per stage, the worker that runs its tasks.
  explicit Schedule(const std::vector<std::size_t>& worker_of_stage);

  TaskId add(const Task& task);
  // `task` begins after `earlier` (a smaller number) has ended. Tasks of one worker need no such
  // call.
  void require(TaskId task, TaskId earlier);

  std::size_t size() const { return tasks_.size(); }
  const Task& task(TaskId task) const { return tasks_[task]; }
  const std::vector<TaskId>& tasksOf(std::size_t worker) const { return tasks_of_[worker]; }

 private:
  std::size_t workerOf(TaskId task) const { return worker_of_stage_[tasks_[task].cell.stage]; }

  const std::vector<std::size_t> worker_of_stage_;
  std::vector<Task> tasks_;
  std::vector<std::vector<TaskId>> tasks_of_;
};

// The cells in GPipe's order.
std::vector<CellIndex> gpipeOrder(std::size_t micro_batches, std::size_t stages);

// A forward task per cell.
Schedule gpipeForward(std::size_t micro_batches, const std::vector<std::size_t>& worker_of_stage);

enum class BackwardWork : std::uint8_t { kNone, kBackward, kRecomputeAndBackward };

// The tasks that `work` asks for in each cell. A cell waits for the cells of the same micro-batch
// that give it gradients: the next stage, and those of `consumers`, per stage the stages that its
// skip connections lead to. A recomputation waits for nothing.
Schedule gpipeBackward(std::size_t micro_batches, const std::vector<std::size_t>& worker_of_stage,
                       const std::vector<std::vector<std::size_t>>& consumers,
                       const std::function<BackwardWork(CellIndex)>& work);

}  // namespace weft::pipe
