// A whole mini-batch as one node of autograd's graph.
#pragma once

#include <c10/core/Event.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "pipe/engine/mini_batch.h"
#include "third_party/torch/torch_compat.h"

namespace weft::pipe {

// Its edges: the input tensors, then the parameters.
class PipelineNode final : public torch::autograd::Node {
 public:
  explicit PipelineNode(std::unique_ptr<MiniBatch> run);

  // Once per backward. Gradients that have gradients (create_graph) are found by running the
  // forward again with autograd's ordinary graph.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  void release_variables() override;
  std::string name() const override { return "WeftPipeBackward"; }

  // Gradients for the apply() of the same backward, in place of its argument; `made`: when they are
  // computed.
  struct Arrived {
    torch::autograd::variable_list grads;
    std::vector<c10::Event> made;
  };
  void setArrived(Arrived arrived);

 private:
  torch::autograd::variable_list backward(const torch::autograd::variable_list& grads);
  Wanted wanted(const MiniBatch& run) const;
  torch::autograd::Node* freeAccumulator(std::size_t output) const;

  // Under Node's mutex_: other threads may run other backwards.
  std::shared_ptr<MiniBatch> run_;  // nullptr once released
  // By autograd's number of the backward; that of a backward that fails before apply() stays.
  std::unordered_map<int, Arrived> arrived_;
  std::vector<torch::autograd::SavedVariable> inputs_;
};

// Stands before a PipelineNode where there are accelerators. Autograd runs a node on the thread of
// its gradients' device, and the stages' own graphs need these threads: a node that waited for the
// stages there would wait for itself. The entry node takes the gradients and passes on a token on
// the CPU, which brings the PipelineNode to the thread that called backward().
class BackwardEntryNode final : public torch::autograd::Node {
 public:
  // `owner` is the same node.
  BackwardEntryNode(PipelineNode& node, NodePtr owner);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  std::string name() const override { return "WeftPipeBackward"; }

 private:
  PipelineNode& node_;  // kept alive by its edge
};

}  // namespace weft::pipe
