// A whole mini-batch as one node of autograd's graph.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "pipe/mini_batch.h"
#include "pipe/torch_compat.h"

namespace weft::pipe {

// Its edges: the input tensors, then the parameters.
class PipelineNode final : public torch::autograd::Node {
 public:
  explicit PipelineNode(std::unique_ptr<MiniBatch> batch);

  // Once per backward. Gradients of a gradient (create_graph) are found by running the forward
  // again with autograd's ordinary graph.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  void release_variables() override;
  std::string name() const override { return "WeftPipeBackward"; }

 private:
  torch::autograd::variable_list differentiable(const torch::autograd::variable_list& grads);
  Wanted wanted() const;

  std::unique_ptr<MiniBatch> batch_;  // none once released
  std::vector<torch::autograd::SavedVariable> inputs_;
};

}  // namespace weft::pipe
