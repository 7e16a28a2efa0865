#include "pipe/cell/leaf_check.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <typeinfo>
#include <vector>

namespace weft::pipe {

namespace autograd = torch::autograd;

void refuseUnregisteredLeaves(const autograd::edge_list& outputs, const NodePtr& input,
                              const autograd::edge_list& boundary, std::size_t stage) {
  ska::flat_hash_set<autograd::Node*> seen;
  std::vector<autograd::Node*> rest;
  for (const autograd::Edge& edge : boundary)
    seen.insert(edge.function.get());
  if (input) seen.insert(input.get());
  const auto visit = [&](const autograd::Edge& edge) {
    if (edge.is_valid() && seen.insert(edge.function.get()).second)
      rest.push_back(edge.function.get());
  };
  for (const autograd::Edge& edge : outputs)
    visit(edge);
  while (!rest.empty()) {
    autograd::Node* const node = rest.back();
    rest.pop_back();
    TORCH_CHECK(
        typeid(*node) != typeid(autograd::AccumulateGrad), "stage ", stage,
        " uses a tensor that requires a gradient and is neither an input of it nor one of its "
        "registered parameters. It would get no gradient: register it with nn.Parameter, "
        "or pass it as an input.");
    for (const autograd::Edge& edge : node->next_edges())
      visit(edge);
  }
}

}  // namespace weft::pipe
