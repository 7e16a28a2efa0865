// SplitBackward: a backward in two halves, as zero-bubble schedules want it (Qi et al. 2024,
// arXiv:2401.10241): the gradients of a stage's inputs, for which the stage before waits, and those
// of its parameters, for which nobody waits.
//
// The first half runs the nodes on the paths from the outputs to the inputs. What reaches a node
// there that leads to parameters too is kept; the second half runs each of these nodes again, from
// what it got, towards its parameters alone.
//
// Not every graph can be split: a parameter that is used in two places of which one leads to the
// other, a hook that would see a gradient twice, an output that no input leads to, a layer of
// torch.compile. Then, and where no input wants a gradient, the first half is a whole backward and
// the second does nothing.
//
// Threads: one at a time, without the GIL. The graph is freed with this object.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "third_party/torch/torch_compat.h"
#include "transport/base/api.h"

namespace weft::pipe {

class WEFT_API SplitBackward {
 public:
  using Tensors = std::vector<at::Tensor>;

  // `outputs` have graphs, `inputs` are leaves that want a gradient.
  SplitBackward(const Tensors& outputs, Tensors inputs);
  ~SplitBackward();

  // Whether the second half has something to do.
  bool isSplit() const { return !splits_.empty(); }
  // The first half, once: takes the gradients of the outputs and gives those of the inputs,
  // undefined where the outputs do not depend on one.
  Tensors inputGradients(const Tensors& gradients);
  // The second half, once: adds to the parameters' gradients.
  void accumulateParameterGradients();

 private:
  struct Split;  // nodes that lead to inputs and to parameters, which they share

  void analyse();
  static void add(std::vector<std::unique_ptr<Split>>& splits, NodePtr node,
                  torch::autograd::edge_list parameters);

  Tensors inputs_;
  torch::autograd::edge_list roots_;
  std::vector<std::unique_ptr<Split>> splits_;
};

}  // namespace weft::pipe
