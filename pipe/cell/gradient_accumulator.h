// Sums gradients: every sum of the engine is a GradientSum, and those of one backward's parameters,
// over micro-batches and stages, are a GradientAccumulator.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <vector>

#include "pipe/cell/parameter_set.h"

namespace weft::pipe {

// A gradient that comes in parts, of any layouts. One thread at a time.
class GradientSum {
 public:
  // An undefined part counts as zero. Parts are added in place once nobody else has the sum.
  void add(at::Tensor part);
  // Undefined if every part was.
  at::Tensor take() { return std::move(sum_); }

 private:
  at::Tensor sum_;
  bool owned_ = false;  // nobody else refers to sum_
};

// Which gradients a backward has to find.
struct Wanted {
  std::vector<bool> inputs;      // per input tensor
  std::vector<bool> parameters;  // per parameter of ParameterSet::all
  // Per parameter: its autograd accumulator, if that may be given gradients of micro-batches one by
  // one, on a stage's thread; nullptr if the whole gradient is to be returned.
  std::vector<torch::autograd::Node*> accumulators;
};

// Stages add to it at the same time, each its own gradients. A parameter of several stages is
// summed by each of them apart, so that the order of additions is always the same.
class GradientAccumulator {
 public:
  GradientAccumulator(const ParameterSet& parameters, const Wanted& wanted);

  // Whether a gradient is wanted of the mini-batch or of a stage before this one.
  bool wantsInputs(std::size_t stage) const { return wants_inputs_[stage]; }
  // Whether the stage's backward has to run at all.
  bool wantsAnything(std::size_t stage) const {
    return wants_inputs_[stage] || !of_stage_[stage].empty();
  }
  // Appends the ends of the stage's graph at parameters whose gradients are wanted. `all`: the ends
  // at every parameter of the mini-batch.
  void appendEnds(std::size_t stage, const torch::autograd::edge_list& all,
                  torch::autograd::edge_list& ends) const;

  // Adds a micro-batch's gradients that arrived at these ends.
  void add(std::size_t stage, torch::autograd::variable_list::iterator grads);
  // Adds a gradient that arrives at `end` while the stage's backward runs; false if `end` is not
  // one of these ends. The gradient goes to the parameter's own accumulator if that is allowed, so
  // that one gradient's memory serves the next one, and nothing is left to do after the stages.
  bool addAt(std::size_t stage, const torch::autograd::edge_list& all,
             const torch::autograd::Node* end, at::Tensor& grad);

  // After all stages: the gradient of each parameter of ParameterSet::all. Undefined where there
  // is none, none is wanted, or the accumulator has got it.
  std::vector<at::Tensor> take();

 private:
  struct Entry {
    std::size_t parameter;               // place in ParameterSet::all
    torch::autograd::Node* accumulator;  // see Wanted
    GradientSum sum;
  };
  const std::size_t parameters_;
  std::vector<std::vector<Entry>> of_stage_;  // the wanted ones
  std::vector<bool> wants_inputs_;
};

}  // namespace weft::pipe
