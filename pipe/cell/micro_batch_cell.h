// MicroBatchCell: one micro-batch in one stage. It runs the stage, keeps what the backward needs,
// and runs the backward.
//
// A cell has an autograd graph of its own, from the aliases of its inputs and the boundary of the
// parameters to its outputs. Cells pass each other plain tensors and gradients.
//
//   kEmpty --forward, gradients wanted----------------> kGraph --backward--> kDone
//   kEmpty --forward, checkpointed--> kCheckpointed --recompute--> kGraph
//   kEmpty --forward, no gradients wanted-------------> kDone
//
// After a backward that keeps the graph the state stays kGraph, or is kCheckpointed again if the
// cell was recomputed.
//
// Threads: one at a time. Failure: throws what the stage throws, and c10::Error if the stage does
// what a pipeline cannot allow.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "pipe/cell/activation.h"
#include "pipe/cell/cell_input.h"
#include "pipe/cell/gradient_accumulator.h"
#include "pipe/cell/mini_batch_context.h"
#include "pipe/schedule/schedule.h"
#include "pipe/stage/output_sample.h"

namespace weft::pipe {

enum class CellState : unsigned char { kEmpty, kCheckpointed, kGraph, kDone };

class MicroBatchCell {
 public:
  MicroBatchCell(MiniBatchContext& context, CellIndex index)
      : context_(&context),
        micro_batch_(index.micro_batch),
        stage_(index.stage),
        input_(context, index.stage) {}

  Activations forward(Activations input, bool checkpoint, const RngTurn& turn);
  void recompute(const RngTurn& turn);

  // Takes the gradients of its outputs, or only those of its skips if the payload has none. Adds
  // the gradients of its parameters to `sums`, and returns those of its inputs.
  Activations backward(const Activations& grads, GradientAccumulator& sums, bool keep_graph,
                       const RngTurn& turn);

  // Drops a recomputation's graph: the cell is kCheckpointed again. Nothing for other states.
  void forgetRecomputation();

  CellState state() const { return state_; }
  // The states of the random number generators before the forward; null if it used none.
  const RngStates* rng() const { return rng_.get(); }
  // The sample of the forward's output, if gradients are wanted.
  const OutputSample& sample() const { return sample_; }

 private:
  Activations perform(CellPass pass);
  Batch callStage(CellPass pass, const std::vector<at::Tensor>& inputs, SkipPort& skips) const;
  Activations outputsOf(CellPass pass, Batch result, SkipPort& skips);
  // Drops everything but the random numbers, which gradientsWithGraph() needs of every stage.
  void drop();
  const torch::autograd::edge_list& parameterEnds() const {
    return checkpointed_ ? context_->recompute_ends : context_->ends;
  }
  StageTraits& traits() const { return context_->pipeline.traits[stage_]; }

  MiniBatchContext* context_;
  std::size_t micro_batch_;
  std::size_t stage_;
  CellState state_ = CellState::kEmpty;
  bool checkpointed_ = false;
  bool drew_ = false;  // the forward drew random numbers from a CPU generator
  CellInput input_;
  torch::autograd::edge_list output_edges_;
  std::size_t outputs_ = 0;  // how many the forward gave, outgoing skips included
  std::unique_ptr<const RngStates> rng_;
  OutputSample sample_;
  std::uint32_t assumed_graphless_ = 0;  // see StageTraits::assumeGraphs
};

}  // namespace weft::pipe
