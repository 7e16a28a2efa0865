// What the executor does for a mini-batch: the forward's tasks and the backward's.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

#include "pipe/data/device_copier.h"
#include "pipe/engine/forward_run.h"
#include "pipe/schedule/clock.h"
#include "pipe/schedule/stage_executor.h"

namespace weft::pipe {

// Gives the workers what is thread-local in the thread that runs the pipeline, and its current
// streams.
class PipelineJob : public Job {
 public:
  explicit PipelineJob(PipelineContext& pipeline);
  void run(TaskId task) final;
  void leaveOut(TaskId task) final { order_->end(task); }
  void worker(std::size_t worker, const std::function<void()>& share) final;

 protected:
  virtual void perform(TaskId task) = 0;
  // At the end of the constructor: so many tasks there are.
  void setTasks(std::size_t tasks) { order_.emplace(tasks); }
  // For what the task draws.
  RngTurn turnOf(TaskId task) {
    return {&*order_, task, outside_, &pipeline_.executor->hooks().while_waiting};
  }
  // Sends what a cell made to another stage's device; see DeviceCopier.
  PendingCopyPtr send(const std::vector<at::Tensor*>& tensors, c10::Device to,
                      CellIndex cell) const;

 private:
  PipelineContext& pipeline_;
  const DeviceCopier* const copier_;
  const at::ThreadLocalState state_;
  RngScope* const outside_;
  std::optional<TaskOrder> order_;
  std::vector<c10::Stream> streams_;
};

class ForwardJob final : public PipelineJob {
 public:
  ForwardJob(ForwardRun& batch, std::vector<std::vector<at::Tensor>> micro_batches,
             const std::vector<bool>& differentiable);
  const TaskGraph& graph() const { return graph_; }

  // Per micro-batch, what the last stage gave.
  std::vector<Cell::Output> outputs;

 private:
  struct Skip {
    Wire wire;
    PendingCopyPtr arriving;
  };
  void perform(TaskId task) override;
  Cell::Input inputOf(std::size_t micro_batch, std::size_t stage);
  PendingCopyPtr sendWires(std::vector<Wire>& wires, c10::Device to, CellIndex cell) const;

  ForwardRun& run_;
  const std::vector<CellIndex> order_;
  TaskGraph graph_;
  std::vector<Cell::Input> next_;         // per micro-batch: what its next stage gets
  std::vector<PendingCopyPtr> arriving_;  // the same: on its way there
  std::vector<std::vector<Skip>> skips_;  // per route, per micro-batch
};

class BackwardJob final : public PipelineJob {
  class StageSink;

 public:
  BackwardJob(ForwardRun& batch, const Wanted& wanted, bool keep_graph);
  const TaskGraph& graph() const { return graph_; }

  // Per micro-batch and input tensor.
  std::vector<std::vector<at::Tensor>> input_grads;
  // Per stage and wanted parameter of it, in the order of parameters_of.
  std::vector<std::vector<at::Tensor>> sums;
  // Per stage: places in ForwardRun::parameters().
  std::vector<std::vector<std::size_t>> wanted_of;

 private:
  struct Step {
    CellIndex cell;
    bool recompute;
  };
  struct SkipGrad {
    at::Tensor value;
    PendingCopyPtr arriving;
  };
  void perform(TaskId task) override;
  void backward(CellIndex index, const RngTurn& turn);
  void addUp(std::size_t stage, std::size_t k, at::Tensor grad);
  void buildGraph();

  ForwardRun& run_;
  const bool keep_graph_;
  std::vector<bool> wants_inputs_;                       // per stage
  std::vector<torch::autograd::edge_list> boundary_;     // per stage, of graphs the forward made
  std::vector<torch::autograd::edge_list> gates_again_;  // of those that are made again
  std::vector<std::vector<torch::autograd::Node*>> accumulators_;  // per wanted parameter, or none
  std::vector<std::vector<bool>> owned_;           // sums that nobody else refers to
  std::vector<PendingCopyPtr> arriving_;           // per micro-batch: its next cell's
  std::vector<std::vector<SkipGrad>> skip_grads_;  // per route, per micro-batch
  std::vector<Step> steps_;
  TaskGraph graph_;
};

}  // namespace weft::pipe
