// What the forward and the backward of a mini-batch have in common as jobs of the executor.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <vector>

#include "pipe/cell/pipeline_context.h"
#include "pipe/data/device_copier.h"
#include "pipe/schedule/schedule.h"
#include "pipe/schedule/stage_executor.h"
#include "pipe/schedule/task_order.h"

namespace weft::pipe {

// Gives the workers what is thread-local in the thread that made the job, and its current streams.
class PipelineJob : public Job {
 public:
  PipelineJob(PipelineContext& pipeline, Schedule schedule);
  const Schedule& schedule() const { return schedule_; }

  void run(TaskId task) final;
  void skip(TaskId task) final { order_.end(task); }
  void worker(std::size_t worker, const std::function<void()>& share) final;

 protected:
  virtual void perform(const Task& task, const RngTurn& turn) = 0;
  // Begins to copy tensors that a cell made to another stage's device; see DeviceCopier.
  PendingCopyPtr send(const std::vector<at::Tensor*>& tensors, c10::Device to,
                      CellIndex from) const;
  // Records from here to its end.
  Timeline::Span record(CellIndex cell, EventKind kind) const;

  PipelineContext& pipeline_;

 private:
  const Schedule schedule_;
  const DeviceCopier* const copier_;
  const at::ThreadLocalState thread_state_;
  RngScope* const outside_;
  TaskOrder order_;
  std::vector<c10::Stream> streams_;
};

}  // namespace weft::pipe
