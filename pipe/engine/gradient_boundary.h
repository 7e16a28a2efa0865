// A node of our own between a parameter and its gradient accumulator, while stages run.
//
// The stages' graphs are run one by one, and a parameter's gradients of all micro-batches are
// summed before autograd may see them: its hooks fire once, and torch.autograd.grad works. So an
// inner backward must stop short of the accumulator; stopping at it would call the tensor's hooks.
// A gate is an identity node that an operation finds where it looks for the accumulator.
// The inner backward ends there and returns what arrived. For any other graph that happened to be
// made meanwhile, by another thread, a gate just passes the gradient on.
//
// What an inner backward returns it has kept to its end: a stage's gradients twice, its sums and
// the new ones. So before the gate of a large parameter stands a collector. Where the backward's
// thread has a GradientSink, it gives the gradient to that as soon as it is complete, as autograd
// does with accumulators, and nothing to the gate.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <vector>

#include "third_party/torch/torch_compat.h"

namespace weft::pipe {

// Passes gradients on unchanged, input k to its edge k; without edges it is a graph's end.
struct IdentityNode final : public torch::autograd::Node {
  IdentityNode() = default;
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    return std::move(grads);
  }
  std::string name() const override { return "WeftPipeGate"; }
};

// Takes gradients while an inner backward runs on the thread that has set it.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // `gate`: where GradientBoundary::edges() ends for the parameter. False: it is not this sink's;
  // untouched.
  virtual bool take(const torch::autograd::Node* gate, at::Tensor& grad) = 0;
};

class GradientSinkGuard {
 public:
  explicit GradientSinkGuard(GradientSink* sink);
  ~GradientSinkGuard();
  GradientSinkGuard(const GradientSinkGuard&) = delete;
  GradientSinkGuard& operator=(const GradientSinkGuard&) = delete;

 private:
  GradientSink* const before_;
};

// An alias of `tensor` whose history is `node`, as a further input of it. Unlike a leaf or a view,
// it may be changed in place.
at::Tensor aliasBehind(const at::Tensor& tensor, const NodePtr& node);

// Puts boundary before leaf tensors and takes them away at its end. Several threads, and several
// Pipes that share parameters, may hold boundary of the same tensor at once: they share it.
class GradientBoundary {
 public:
  // Of tensors that require a gradient. One that is no leaf has no gate; its history is used as it
  // is.
  explicit GradientBoundary(const std::vector<at::Tensor>& tensors);
  ~GradientBoundary();
  GradientBoundary(const GradientBoundary&) = delete;
  GradientBoundary& operator=(const GradientBoundary&) = delete;

  // Where inner graphs end, in the order of the tensors. Stays valid after the end.
  const torch::autograd::edge_list& edges() const { return edges_; }

 private:
  std::vector<at::Tensor> leaves_;
  torch::autograd::edge_list edges_;
};

}  // namespace weft::pipe
