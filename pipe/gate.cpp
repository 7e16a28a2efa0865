#include "pipe/gate.h"

#include <torch/csrc/autograd/functions/utils.h>

#include <mutex>
#include <type_traits>
#include <unordered_map>

namespace weft::pipe {

namespace autograd = torch::autograd;

namespace {

using WeakNode =
    std::conditional_t<std::is_same_v<NodePtr, std::shared_ptr<autograd::Node>>,
                       std::weak_ptr<autograd::Node>, c10::weak_intrusive_ptr<autograd::Node>>;

struct Placed {
  NodePtr gate;
  NodePtr accumulator;  // what was there
  std::size_t holders = 0;
};

// The gates in place now, in all threads.
std::mutex g_mutex;
std::unordered_map<c10::TensorImpl*, Placed>& placed() {
  static auto* const gates = new std::unordered_map<c10::TensorImpl*, Placed>;
  return *gates;
}

}  // namespace

at::Tensor aliasBehind(const at::Tensor& tensor, const NodePtr& node) {
  at::Tensor alias = tensor.detach();
  autograd::set_history(alias, node);
  return alias;
}

Gates::Gates(const std::vector<at::Tensor>& tensors) {
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
      auto gate = makeNode<IdentityNode>();
      gate->add_input_metadata(tensor);
      gate->add_next_edge({entry.accumulator, 0});
      entry.gate = std::move(gate);
      autograd::impl::set_grad_accumulator(tensor, WeakNode(entry.gate));
    }
    edges_.emplace_back(entry.gate, 0);
    leaves_.push_back(tensor);
  }
}

Gates::~Gates() {
  std::vector<Placed> removed;  // dropped without the lock
  const std::lock_guard lock(g_mutex);
  for (const at::Tensor& tensor : leaves_) {
    const auto it = placed().find(tensor.unsafeGetTensorImpl());
    if (--it->second.holders != 0) continue;
    autograd::impl::set_grad_accumulator(tensor, WeakNode(it->second.accumulator));
    removed.push_back(std::move(it->second));
    placed().erase(it);
  }
}

}  // namespace weft::pipe
