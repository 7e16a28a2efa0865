#include "pipe/schedule/schedule.h"

#include <algorithm>
#include <optional>

namespace weft::pipe {

Schedule::Schedule(const std::vector<std::size_t>& worker_of_stage)
    : worker_of_stage_(worker_of_stage),
      tasks_of_(*std::max_element(worker_of_stage.begin(), worker_of_stage.end()) + 1) {}

TaskId Schedule::add(const Task& task) {
  const auto id = static_cast<TaskId>(tasks_.size());
  tasks_.push_back(task);
  tasks_of_[workerOf(id)].push_back(id);
  return id;
}

void Schedule::require(TaskId task, TaskId earlier) {
  if (workerOf(task) != workerOf(earlier)) tasks_[task].needs.push_back(earlier);
}

std::vector<CellIndex> gpipeOrder(std::size_t micro_batches, std::size_t stages) {
  std::vector<CellIndex> order;
  order.reserve(micro_batches * stages);
  for (std::size_t clock = 0; clock + 1 < micro_batches + stages; ++clock) {
    const std::size_t first = clock < micro_batches ? 0 : clock + 1 - micro_batches;
    const std::size_t end = std::min(clock + 1, stages);
    for (std::size_t stage = first; stage < end; ++stage)
      order.push_back({clock - stage, stage});
  }
  return order;
}

Schedule gpipeForward(std::size_t micro_batches, const std::vector<std::size_t>& worker_of_stage) {
  Schedule schedule(worker_of_stage);
  std::vector<TaskId> previous(micro_batches);  // the micro-batch's task in the stage before
  for (const CellIndex cell : gpipeOrder(micro_batches, worker_of_stage.size())) {
    const TaskId task = schedule.add({cell, TaskKind::kForward});
    if (cell.stage != 0) schedule.require(task, previous[cell.micro_batch]);
    previous[cell.micro_batch] = task;
  }
  return schedule;
}

Schedule gpipeBackward(std::size_t micro_batches, const std::vector<std::size_t>& worker_of_stage,
                       const std::vector<std::vector<std::size_t>>& consumers,
                       const std::function<BackwardWork(CellIndex)>& work) {
  const std::size_t stages = worker_of_stage.size();
  Schedule schedule(worker_of_stage);
  std::vector<std::optional<TaskId>> backward_of(micro_batches * stages);
  std::vector<CellIndex> order = gpipeOrder(micro_batches, stages);
  std::reverse(order.begin(), order.end());
  for (const CellIndex cell : order) {
    const BackwardWork todo = work(cell);
    if (todo == BackwardWork::kNone) continue;
    if (todo == BackwardWork::kRecomputeAndBackward) schedule.add({cell, TaskKind::kRecompute});
    const TaskId task = schedule.add({cell, TaskKind::kBackward});
    auto* const of_micro_batch = &backward_of[cell.micro_batch * stages];
    of_micro_batch[cell.stage] = task;
    const auto requireStage = [&](std::size_t stage) {
      if (of_micro_batch[stage]) schedule.require(task, *of_micro_batch[stage]);
    };
    if (cell.stage + 1 < stages) requireStage(cell.stage + 1);
    for (const std::size_t consumer : consumers[cell.stage])
      requireStage(consumer);
  }
  return schedule;
}

}  // namespace weft::pipe
