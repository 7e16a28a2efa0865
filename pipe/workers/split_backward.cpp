#include "pipe/workers/split_backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string_view>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include "pipe/data/memory.h"

namespace weft::pipe {

namespace {

namespace ag = torch::autograd;

using Nodes = std::unordered_set<ag::Node*>;

// What a node gets in the first half, and the versions of it then.
struct Kept {
  ag::variable_list gradients;
  std::vector<std::uint32_t> versions;
};

// Keeps what a node gets the first time that it runs.
class Keep : public ag::FunctionPreHook {
 public:
  explicit Keep(std::shared_ptr<Kept> kept) : kept_(std::move(kept)) {}

  ag::variable_list operator()(const ag::variable_list& gradients) override {
    if (kept_->gradients.empty()) *kept_ = {gradients, versionsOf(gradients)};
    return gradients;
  }

 private:
  const std::shared_ptr<Kept> kept_;
};

std::vector<ag::Node*> nodesAt(const ag::edge_list& edges) {
  std::vector<ag::Node*> nodes;
  for (const auto& edge : edges) {
    if (edge.function) nodes.push_back(edge.function.get());
  }
  return nodes;
}

// All nodes that the edges lead to, each after those that it leads to.
std::vector<ag::Node*> nodesFrom(const ag::edge_list& edges) {
  std::vector<ag::Node*> ordered;
  Nodes seen;
  std::vector<std::pair<ag::Node*, bool>> left;  // and whether its children are done
  for (auto* const node : nodesAt(edges))
    left.emplace_back(node, false);
  while (!left.empty()) {
    const auto [node, done] = left.back();
    left.pop_back();
    if (done) {
      ordered.push_back(node);
    } else if (seen.insert(node).second) {
      left.emplace_back(node, true);
      for (auto* const child : nodesAt(node->next_edges()))
        left.emplace_back(child, false);
    }
  }
  return ordered;
}

// The leaves that a node leads to otherwise than through a node on a path to an input.
ag::edge_list parametersOf(const ag::Node& node, const Nodes& to_inputs) {
  ag::edge_list found;
  Nodes seen;
  ag::edge_list left = node.next_edges();
  while (!left.empty()) {
    const ag::Edge edge = std::move(left.back());
    left.pop_back();
    if (!edge.function || to_inputs.contains(edge.function.get()) ||
        !seen.insert(edge.function.get()).second) {
      continue;
    }
    if (dynamic_cast<ag::AccumulateGrad*>(edge.function.get()) != nullptr) found.push_back(edge);
    const auto& next = edge.function->next_edges();
    left.insert(left.end(), next.begin(), next.end());
  }
  return found;
}

// Whether a node leads to one of the others.
bool leadsTo(const ag::Node& node, const Nodes& others) {
  return std::ranges::any_of(nodesFrom(node.next_edges()),
                             [&](auto* next) { return others.contains(next); });
}

// The nodes, of these in the order of nodesFrom, on a path to one of the leaves.
Nodes nodesLeadingTo(const ag::edge_list& leaves, const std::vector<ag::Node*>& nodes) {
  Nodes leading;
  for (const auto& leaf : leaves)
    leading.insert(leaf.function.get());
  for (auto* const node : nodes) {
    const auto children = nodesAt(node->next_edges());
    if (std::any_of(children.begin(), children.end(),
                    [&](auto* child) { return leading.contains(child); })) {
      leading.insert(node);
    }
  }
  return leading;
}

// What torch.compile made: its backward may use up what the forward kept, and so runs once, without
// keeping the graph. Nodes of Python alone are asked for their names, which takes long.
bool isCompiled(const ag::Node& node) {
  return std::string_view(typeid(node).name()).find("PyNode") != std::string_view::npos &&
         node.name() == "CompiledFunctionBackward";
}

bool hasHooks(ag::Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() ||
         !node.pre_hooks().empty() || !node.post_hooks().empty();
}

ag::variable_list run(const ag::edge_list& roots, const ag::variable_list& gradients,
                      bool keep_graph, bool accumulate, const ag::edge_list& outputs) {
  return ag::Engine::get_default_engine().execute(roots, gradients, keep_graph,
                                                  /*create_graph=*/false, accumulate, outputs);
}

ag::edge_list edgesOf(const std::vector<at::Tensor>& tensors) {
  ag::edge_list edges;
  for (const auto& tensor : tensors)
    edges.push_back(ag::impl::gradient_edge(tensor));
  return edges;
}

}  // namespace

struct SplitBackward::Split {
  struct Part {
    NodePtr node;
    std::shared_ptr<Kept> kept;
  };

  std::vector<Part> parts;
  ag::edge_list parameters;

  // One that runs again would run the other, which has run, again.
  bool leadsToItself() const {
    if (parts.size() == 1) return false;
    Nodes own;
    for (const auto& part : parts)
      own.insert(part.node.get());
    return std::any_of(parts.begin(), parts.end(),
                       [&](const Part& part) { return leadsTo(*part.node, own); });
  }
};

SplitBackward::SplitBackward(const Tensors& outputs, Tensors inputs)
    : inputs_(std::move(inputs)), roots_(edgesOf(outputs)) {
  if (!inputs_.empty()) analyse();
}

SplitBackward::~SplitBackward() = default;

void SplitBackward::analyse() {
  const auto nodes = nodesFrom(roots_);
  if (std::any_of(nodes.begin(), nodes.end(), [](auto* node) { return isCompiled(*node); })) return;
  const auto to_inputs = nodesLeadingTo(edgesOf(inputs_), nodes);
  for (const auto& root : roots_) {
    if (!to_inputs.contains(root.function.get())) return;
  }
  std::vector<std::unique_ptr<Split>> splits;
  for (auto* const node : nodes) {
    if (!to_inputs.contains(node)) continue;
    auto parameters = parametersOf(*node, to_inputs);
    if (parameters.empty()) continue;
    if (hasHooks(*node)) return;
    add(splits, node->getptr(), std::move(parameters));
  }
  if (std::any_of(splits.begin(), splits.end(),
                  [](const auto& split) { return split->leadsToItself(); })) {
    return;
  }
  splits_ = std::move(splits);
}

// Nodes that share a parameter are one split: their gradients of it add up.
void SplitBackward::add(std::vector<std::unique_ptr<Split>>& splits, NodePtr node,
                        ag::edge_list parameters) {
  auto made = std::make_unique<Split>();
  made->parts.push_back({std::move(node), std::make_shared<Kept>()});
  made->parameters = std::move(parameters);
  Nodes own;
  for (const auto& parameter : made->parameters)
    own.insert(parameter.function.get());
  for (auto& other : splits) {
    const bool shares =
        std::any_of(other->parameters.begin(), other->parameters.end(),
                    [&](const auto& edge) { return own.contains(edge.function.get()); });
    if (!shares) continue;
    for (auto& part : other->parts)
      made->parts.push_back(std::move(part));
    for (auto& parameter : other->parameters) {
      if (own.insert(parameter.function.get()).second) made->parameters.push_back(parameter);
    }
    other.reset();
  }
  std::erase(splits, nullptr);
  splits.push_back(std::move(made));
}

SplitBackward::Tensors SplitBackward::inputGradients(const Tensors& gradients) {
  if (!isSplit()) {
    run(roots_, gradients, /*keep_graph=*/false, /*accumulate=*/true, {});
    roots_.clear();
    Tensors found;
    for (const auto& input : inputs_)
      found.push_back(input.grad());
    return found;
  }
  for (const auto& split : splits_) {
    for (const auto& part : split->parts) {
      part.node->add_pre_hook(std::make_unique<Keep>(part.kept));
    }
  }
  auto found = run(roots_, gradients, /*keep_graph=*/true, /*accumulate=*/false, edgesOf(inputs_));
  roots_.clear();
  return found;
}

void SplitBackward::accumulateParameterGradients() {
  for (auto& split : std::exchange(splits_, {})) {
    ag::edge_list roots;
    ag::variable_list gradients;
    for (const auto& part : split->parts) {
      const auto& kept = part.kept->gradients;
      TORCH_CHECK(versionsOf(kept) == part.kept->versions, "a gradient that reaches ",
                  part.node->name(),
                  " in the stage's backward is changed in place, and the "
                  "second half of the backward needs it as it was: let the backward change a "
                  "clone, or take another schedule than \"zb\"");
      for (std::uint32_t number = 0; number < kept.size(); ++number) {
        if (!kept[number].defined()) continue;
        roots.emplace_back(part.node, number);
        gradients.push_back(kept[number]);
      }
    }
    if (roots.empty()) continue;  // the outputs do not depend on it
    run(roots, gradients, /*keep_graph=*/false, /*accumulate=*/true, split->parameters);
    split.reset();
  }
}

}  // namespace weft::pipe
