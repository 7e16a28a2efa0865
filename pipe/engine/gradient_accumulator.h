// Sums the parameters' gradients of one backward, over micro-batches and stages.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <vector>

#include "pipe/cell/gradient_boundary.h"
#include "pipe/engine/gradient_sum.h"
#include "pipe/engine/parameter_set.h"

namespace weft::pipe {

// Which gradients a backward has to find.
struct Wanted {
  std::vector<bool> inputs;      // per input tensor
  std::vector<bool> parameters;  // per parameter of ParameterSet::all()
  // Per parameter: its autograd accumulator, if that may be given gradients of micro-batches one by
  // one, on a stage's thread; nullptr if the whole gradient is to be returned.
  std::vector<torch::autograd::Node*> accumulators;
};

// Stages add to it at the same time, each its own gradients. A parameter of several stages is
// summed by each of them apart, so that the order of additions is always the same.
class GradientAccumulator {
 public:
  GradientAccumulator(const ParameterSet& parameters, const Wanted& wanted);

  // Of a stage's edges, one per parameter of it, those whose gradients are wanted.
  torch::autograd::edge_list wantedEdges(std::size_t stage,
                                         const torch::autograd::edge_list& edges) const;
  // Whether a gradient is wanted of the mini-batch or of a stage before this one.
  bool wantsInputs(std::size_t stage) const { return wants_inputs_[stage]; }
  // Whether the stage's backward has to run at all.
  bool wantsAnything(std::size_t stage) const {
    return wants_inputs_[stage] || !of_stage_[stage].empty();
  }

  // Adds a micro-batch's gradient of the stage's wanted parameter k.
  void add(std::size_t stage, std::size_t k, at::Tensor grad) {
    of_stage_[stage][k].sum.add(std::move(grad));
  }

  // Takes the gradients of large parameters during a stage's backward. They go to the parameter's
  // own accumulator where that may be, so that one gradient's memory serves the next one, and
  // nothing is left to do after the stages. `edges`: wantedEdges().
  class StageSink final : public GradientSink {
   public:
    StageSink(GradientAccumulator& sums, std::size_t stage, const torch::autograd::edge_list& edges)
        : sums_(sums), stage_(stage), edges_(edges) {}
    bool take(const torch::autograd::Node* end, at::Tensor& grad) override;

   private:
    GradientAccumulator& sums_;
    const std::size_t stage_;
    const torch::autograd::edge_list& edges_;
  };

  // After all stages: the gradient of each parameter of ParameterSet::all(). Undefined where there
  // is none, none is wanted, or the accumulator has got it.
  std::vector<at::Tensor> take();

 private:
  struct Entry {
    std::size_t parameter;               // place in ParameterSet::all()
    std::size_t edge;                    // place among the stage's parameters
    torch::autograd::Node* accumulator;  // see Wanted
    GradientSum sum;
  };
  const std::size_t parameters_;
  std::vector<std::vector<Entry>> of_stage_;  // the wanted ones
  std::vector<bool> wants_inputs_;
};

}  // namespace weft::pipe
