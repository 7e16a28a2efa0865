// The parameters of a mini-batch that require a gradient: each once, whatever number of stages has
// it.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pipe/cell/gradient_boundary.h"
#include "pipe/stage/stage.h"

namespace weft::pipe {

class ParameterSet {
 public:
  // `tensors`: what each stage refers to; empty if no gradients are wanted.
  ParameterSet(const std::vector<std::shared_ptr<StageTensors>>& tensors, std::size_t stages);

  const std::vector<at::Tensor>& all() const { return parameters_; }
  // The stage's, as places in all().
  const std::vector<std::size_t>& ofStage(std::size_t stage) const { return of_stage_[stage]; }
  std::size_t stages() const { return of_stage_.size(); }
  // In how many stages the parameter is.
  std::size_t stagesWith(std::size_t parameter) const { return stages_with_[parameter]; }
  // Per stage, the boundary of all() at its parameters.
  std::vector<torch::autograd::edge_list> edgesPerStage(const GradientBoundary& boundary) const;

  // Remembers how often each parameter has been changed in place until now.
  void noteVersions();
  // Before a stage runs again: throws if a parameter has been changed since.
  void checkVersions() const;

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<std::size_t> stages_with_;
  std::vector<std::vector<std::size_t>> of_stage_;
  std::vector<std::uint32_t> versions_;
};

}  // namespace weft::pipe
