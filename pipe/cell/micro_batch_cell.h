// One micro-batch in one stage: runs it, keeps what its backward needs, and runs that.
//
// A cell has an autograd graph of its own, from the aliases of its inputs and the boundary of the
// parameters to its outputs. Cells pass each other plain tensors, and gradients.
//
//   kEmpty --forward, gradients wanted----------------> kGraph --backward--> kDone
//   kEmpty --forward, checkpointed--> kCheckpointed --recompute--> kGraph
//   kEmpty --forward, no gradients wanted-------------> kDone
//
// A backward that keeps the graph leaves kGraph as it is, and what was recomputed goes back to
// kCheckpointed. One thread at a time.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "pipe/cell/activation.h"
#include "pipe/cell/gradient_accumulator.h"
#include "pipe/cell/mini_batch_context.h"
#include "pipe/cell/output_sample.h"
#include "pipe/schedule/schedule.h"
#include "third_party/torch/torch_compat.h"

namespace weft::pipe {

enum class CellState : unsigned char { kEmpty, kCheckpointed, kGraph, kDone };

class MicroBatchCell {
 public:
  MicroBatchCell(MiniBatchContext& context, CellIndex index)
      : context_(&context), micro_batch_(index.micro_batch), stage_(index.stage) {}

  Activations forward(Activations input, bool checkpoint, const RngTurn& turn);
  void recompute(const RngTurn& turn);

  // Takes the gradients of its outputs, or of its skips alone where the payload has none; adds
  // those of its parameters to `sums`, and returns those of its inputs.
  Activations backward(const Activations& grads, GradientAccumulator& sums, bool keep_graph,
                       const RngTurn& turn);

  CellState state() const { return state_; }
  // The generators' states before the forward; nullptr if it used none.
  const RngStates* rng() const { return rng_.get(); }
  // The sample of the forward's output, if gradients are wanted.
  const OutputSample& sample() const { return sample_; }

 private:
  enum class Pass : unsigned char { kGraph, kCheckpoint, kRecompute };

  Activations perform(Pass pass);
  std::vector<at::Tensor> aliasInputs(Pass pass);
  Batch callStage(Pass pass, const std::vector<at::Tensor>& inputs, SkipPort& skips) const;
  Activations outputsOf(Pass pass, Batch result, SkipPort& skips);
  bool isNeededAgain(Pass pass, const Activation& input) const;
  void learnInput(Pass pass, const std::vector<at::Tensor>& given,
                  const std::vector<std::uint32_t>& versions) const;
  // Forgets everything but the random numbers: a run with a graph needs those of every stage.
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
  bool drew_ = false;  // from a CPU generator, in the forward
  Activations input_;
  std::vector<std::uint32_t> input_versions_;  // after the forward, where it will be repeated
  NodePtr input_node_;                         // ends the graph at the inputs
  std::vector<std::int64_t> input_slot_;       // per input: its place at that node, or -1
  torch::autograd::edge_list output_edges_;
  std::size_t outputs_ = 0;  // of the forward, outgoing skips included
  std::unique_ptr<const RngStates> rng_;
  OutputSample sample_;
  std::uint32_t assumed_graphless_ = 0;  // see StageTraits::assumeGraphs
};

}  // namespace weft::pipe
