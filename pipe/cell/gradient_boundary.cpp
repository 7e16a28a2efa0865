#include "pipe/cell/gradient_boundary.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <cstdint>
#include <limits>
#include <mutex>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>

namespace weft::pipe {

namespace autograd = torch::autograd;

namespace {

using WeakNode =
    std::conditional_t<std::is_same_v<NodePtr, std::shared_ptr<autograd::Node>>,
                       std::weak_ptr<autograd::Node>, c10::weak_intrusive_ptr<autograd::Node>>;

// A collector costs a task something, and the gradients of small parameters are no burden.
constexpr std::size_t kLarge = 64 << 10;  // bytes, of any layout

thread_local const GradientSink* t_sink = nullptr;

struct CollectorNode final : public autograd::Node {
  // Runs before all else that could run, so that a gradient is added and freed before the next one
  // is made; an accumulator has the same number.
  CollectorNode() : Node(/*sequence_nr=*/std::numeric_limits<std::uint64_t>::max()) {}
  autograd::variable_list apply(autograd::variable_list&& grads) override {
    if (t_sink == nullptr || !grads[0].defined()) return std::move(grads);
    if ((*t_sink)(next_edge(0).function.get(), grads[0])) grads[0].reset();
    return std::move(grads);
  }
  std::string name() const override { return "WeftPipeCollector"; }
};

struct Placed {
  NodePtr front;  // the boundary node, or the collector before it
  NodePtr boundary;
  NodePtr accumulator;  // what was there
  std::size_t holders = 0;
};

// The boundary nodes in place now, of all threads.
std::mutex g_mutex;
std::unordered_map<c10::TensorImpl*, Placed>& placed() {
  static auto* const nodes = new std::unordered_map<c10::TensorImpl*, Placed>;
  return *nodes;
}

void setAccumulator(const at::Tensor& leaf, const NodePtr& node) {
  // Under this lock torch looks for it, on any thread that makes another graph meanwhile.
  const std::lock_guard lock(autograd::impl::get_autograd_meta(leaf)->mutex_);
  autograd::impl::set_grad_accumulator(leaf, WeakNode(node));
}

// Where no gradient goes on: a leaf, or the input of another cell.
bool isEnd(const autograd::Node& node) {
  return typeid(node) == typeid(autograd::AccumulateGrad) ||
         (typeid(node) == typeid(IdentityNode) && node.num_outputs() == 0);
}

}  // namespace

GradientSinkGuard::GradientSinkGuard(const GradientSink& sink)
    : before_(std::exchange(t_sink, &sink)) {}
GradientSinkGuard::~GradientSinkGuard() { t_sink = before_; }

at::Tensor aliasBehind(const at::Tensor& tensor, const NodePtr& node) {
  at::Tensor alias = tensor.detach();
  autograd::set_history(alias, node);
  return alias;
}

at::Tensor aliasOf(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return tensor;
  auto node = makeNode<IdentityNode>();
  node->add_next_edge(autograd::impl::gradient_edge(tensor));
  return aliasBehind(tensor, node);
}

GradientBoundary::GradientBoundary(const std::vector<at::Tensor>& tensors) {
  edges_.reserve(tensors.size());
  const std::lock_guard lock(g_mutex);
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_leaf()) {
      edges_.push_back(autograd::impl::gradient_edge(tensor));
      continue;
    }
    Placed& entry = placed()[tensor.unsafeGetTensorImpl()];
    if (entry.holders++ == 0) {
      entry.accumulator = autograd::impl::grad_accumulator(tensor);
      auto boundary = makeNode<IdentityNode>();
      boundary->add_input_metadata(tensor);
      boundary->add_next_edge({entry.accumulator, 0});
      entry.boundary = entry.front = std::move(boundary);
      if (static_cast<std::size_t>(tensor.numel()) * tensor.element_size() >= kLarge) {
        auto collector = makeNode<CollectorNode>();
        collector->add_input_metadata(tensor);
        collector->add_next_edge({entry.boundary, 0});
        entry.front = std::move(collector);
      }
      setAccumulator(tensor, entry.front);
    }
    edges_.emplace_back(entry.boundary, 0);
    leaves_.push_back(tensor);
  }
}

GradientBoundary::~GradientBoundary() {
  std::vector<Placed> removed;  // dropped without the lock
  const std::lock_guard lock(g_mutex);
  for (const at::Tensor& tensor : leaves_) {
    const auto it = placed().find(tensor.unsafeGetTensorImpl());
    if (--it->second.holders != 0) continue;
    setAccumulator(tensor, it->second.accumulator);
    removed.push_back(std::move(it->second));
    placed().erase(it);
  }
}

void refuseUnregisteredLeaves(const autograd::edge_list& outputs, const NodePtr& input,
                              const autograd::edge_list& edges,
                              const std::vector<std::size_t>& places, std::size_t stage) {
  ska::flat_hash_set<autograd::Node*> seen;
  std::vector<autograd::Node*> rest;
  for (const std::size_t place : places)
    seen.insert(edges[place].function.get());
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
        !isEnd(*node), "stage ", stage,
        " uses a tensor that requires a gradient and is neither an input of it nor one of its "
        "registered parameters. It would get no gradient: register it with nn.Parameter, or pass "
        "it as an input, in a tuple, a list or a dictionary. What a remote call gives is such a "
        "tensor, too: a weft.RemoteModule can be a stage of a Pipe with a schedule; detach what "
        "other calls give.");
    for (const autograd::Edge& edge : node->next_edges())
      visit(edge);
  }
}

}  // namespace weft::pipe
