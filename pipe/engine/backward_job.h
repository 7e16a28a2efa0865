// The backward of a mini-batch as a job: recomputations, and gradients from cell to cell.
#pragma once

#include <vector>

#include "pipe/engine/cell_grid.h"
#include "pipe/engine/gradient_accumulator.h"
#include "pipe/engine/pipeline_job.h"

namespace weft::pipe {

class BackwardJob final : public PipelineJob {
 public:
  // `output_grads`: per micro-batch, the gradients of the last stage's outputs.
  BackwardJob(MiniBatchContext& context, CellGrid& cells, GradientAccumulator& accumulator,
              std::vector<std::vector<at::Tensor>> output_grads, bool keep_graph);

  // After the job: the gradients of the mini-batch's tensors, per micro-batch. A micro-batch
  // without any gradient has no entries.
  std::vector<std::vector<at::Tensor>> takeInputGrads() { return std::move(input_grads_); }

 private:
  struct SkipGrad {
    at::Tensor value;
    PendingCopyPtr copy;
  };
  // On its way to a cell's backward: gradients of its payload.
  struct PayloadGrads {
    std::vector<at::Tensor> values;
    PendingCopyPtr copy;
  };
  void perform(const Task& task, const RngTurn& turn) override;
  void backward(CellIndex cell, const RngTurn& turn);
  std::vector<at::Tensor> outputGradsOf(CellIndex cell);
  void sendSkipGrads(CellIndex cell, std::vector<at::Tensor>& input_grads);
  void sendToPreviousStage(CellIndex cell, std::vector<at::Tensor> input_grads);
  PayloadGrads& payloadGrads(CellIndex cell) {
    return payload_grads_[cell.micro_batch * pipeline_.stages.size() + cell.stage];
  }

  CellGrid& cells_;
  GradientAccumulator& accumulator_;
  const bool keep_graph_;
  // Per stage, the ends of the graphs at parameters whose gradients are wanted: of graphs that the
  // forward made, and of those that are recomputed.
  std::vector<torch::autograd::edge_list> boundary_;
  std::vector<torch::autograd::edge_list> recompute_boundary_;
  std::vector<PayloadGrads> payload_grads_;        // per cell
  std::vector<std::vector<SkipGrad>> skip_grads_;  // per route, per micro-batch
  std::vector<std::vector<at::Tensor>> input_grads_;
};

}  // namespace weft::pipe
