// A whole mini-batch as one node of autograd's graph.
#pragma once

#include <c10/core/Event.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <optional>
#include <vector>

#include "pipe/engine/forward_run.h"
#include "third_party/torch/torch_compat.h"

namespace weft::pipe {

// Its edges: the input tensors, then the parameters.
//
// Where there are accelerators, a BackwardEntryNode stands before it. Autograd runs a node on the
// thread of its gradients' device, and the stages' own graphs need these threads: one that waited
// for the stages here would wait for itself. The entry node takes the gradients in and passes on a
// token on the CPU, which brings this node to the thread that called backward().
class PipelineNode final : public torch::autograd::Node {
 public:
  explicit PipelineNode(std::unique_ptr<ForwardRun> batch);

  // Once per backward. Gradients of a gradient (create_graph) are found by running the forward
  // again with autograd's ordinary graph.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  void release_variables() override;
  std::string name() const override { return "WeftPipeBackward"; }

 private:
  friend class BackwardEntryNode;
  // What the entry node took in; whose streams have made them when the events have come.
  struct Taken {
    torch::autograd::variable_list grads;
    std::vector<c10::Event> made;
  };
  torch::autograd::variable_list run(const torch::autograd::variable_list& grads);
  torch::autograd::variable_list differentiable(const torch::autograd::variable_list& grads);
  Wanted wanted() const;
  torch::autograd::Node* freeAccumulator(std::size_t output) const;

  std::unique_ptr<ForwardRun> batch_;  // none once released
  std::vector<torch::autograd::SavedVariable> inputs_;
  std::optional<Taken> taken_;
};

class BackwardEntryNode final : public torch::autograd::Node {
 public:
  // `owner` is the same node.
  BackwardEntryNode(PipelineNode& node, NodePtr owner);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  std::string name() const override { return "WeftPipeBackward"; }

 private:
  PipelineNode& node_;  // its edge keeps it
};

}  // namespace weft::pipe
