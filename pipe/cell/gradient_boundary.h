// Ends the stages' graphs at a node of our own, before a parameter's gradient accumulator.
//
// The stages' graphs are run one by one, and a parameter's gradients of all micro-batches are
// summed before autograd may see them: its hooks fire once, and torch.autograd.grad works. So a
// stage's backward must stop short of the accumulator; stopping at it would call the tensor's
// hooks. While a GradientBoundary lives, an operation that looks for the accumulator finds an
// identity node instead. The stage's backward ends there and returns what arrived. In any other
// graph, made meanwhile by another thread, that node passes the gradient on.
//
// A stage's backward keeps what it returns until it ends, so the stage's gradients would be in
// memory twice: their sums and the new ones. A collector node therefore stands before the boundary
// node of a large parameter. If the thread has a GradientSink, the collector gives it the gradient
// as soon as that is complete, as autograd does with accumulators, and gives nothing to the
// boundary node.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "third_party/torch/torch_compat.h"
#include "transport/base/api.h"

namespace weft::pipe {

// Passes gradients on unchanged, input k to its edge k; without edges it is a graph's end.
struct IdentityNode final : public torch::autograd::Node {
  IdentityNode() = default;
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    return std::move(grads);
  }
  std::string name() const override { return "WeftPipeBoundary"; }
};

// Takes gradients while a stage's backward runs on the thread that has set it. `end`: where
// GradientBoundary::edges() ends for the parameter. False: it is not this sink's, and the gradient
// is untouched.
using GradientSink = std::function<bool(const torch::autograd::Node* end, at::Tensor& grad)>;

class GradientSinkGuard {
 public:
  explicit GradientSinkGuard(const GradientSink& sink);
  ~GradientSinkGuard();
  GradientSinkGuard(const GradientSinkGuard&) = delete;
  GradientSinkGuard& operator=(const GradientSinkGuard&) = delete;

 private:
  const GradientSink* const before_;
};

// An alias of `tensor` whose history is `node`, as a further input of it. Unlike a leaf or a view,
// it may be changed in place.
at::Tensor aliasBehind(const at::Tensor& tensor, const NodePtr& node);
// With a node of its own between; without a gradient, the tensor itself.
WEFT_API at::Tensor aliasOf(const at::Tensor& tensor);

// Places boundary nodes before leaf tensors, and removes them at its end. Several threads, and
// several Pipes that share parameters, may have a boundary at the same tensor at once: they share
// its node.
class GradientBoundary {
 public:
  // `tensors` require a gradient. A tensor that is no leaf gets no node; its own history is used.
  explicit GradientBoundary(const std::vector<at::Tensor>& tensors);
  ~GradientBoundary();
  GradientBoundary(const GradientBoundary&) = delete;
  GradientBoundary& operator=(const GradientBoundary&) = delete;

  // Where the stages' graphs end, in the order of the tensors. Stays valid after the end.
  const torch::autograd::edge_list& edges() const { return edges_; }

 private:
  std::vector<at::Tensor> leaves_;
  torch::autograd::edge_list edges_;
};

// Walks a stage's graph from its outputs to its ends, which are `input` (may be none) and those
// `edges` of a boundary that have the `places` of the stage's parameters. Throws if it comes to a
// leaf, or to another cell's input: that is neither an input nor a registered parameter, and would
// silently get no gradient.
void refuseUnregisteredLeaves(const torch::autograd::edge_list& outputs, const NodePtr& input,
                              const torch::autograd::edge_list& edges,
                              const std::vector<std::size_t>& places, std::size_t stage);

}  // namespace weft::pipe
