// The forward of a mini-batch as a job: passes activations and skips from cell to cell.
#pragma once

#include <vector>

#include "pipe/engine/cell_grid.h"
#include "pipe/engine/pipeline_job.h"

namespace weft::pipe {

class ForwardJob final : public PipelineJob {
 public:
  // Per micro-batch: the first stage's input, and whether it is checkpointed.
  ForwardJob(MiniBatchContext& context, CellGrid& cells, std::vector<Activations> inputs,
             std::vector<bool> checkpointed);

  // After the job: what the last stage gave, per micro-batch.
  std::vector<Activations> takeOutputs() { return std::move(outputs_); }

 private:
  struct Skip {
    Activation activation;
    PendingCopyPtr copy;
  };
  void perform(const Task& task, const RngTurn& turn) override;
  Activations inputOf(CellIndex cell);
  void sendSkips(CellIndex cell, Activations& output);
  PendingCopyPtr sendToNextStage(CellIndex cell, Activations& output) const;

  CellGrid& cells_;
  const std::vector<bool> checkpointed_;
  std::vector<Activations> next_;         // per micro-batch: the input of its next stage
  std::vector<PendingCopyPtr> copies_;    // per micro-batch: of next_, to the next stage's device
  std::vector<std::vector<Skip>> skips_;  // per route, per micro-batch
  std::vector<Activations> outputs_;
};

}  // namespace weft::pipe
