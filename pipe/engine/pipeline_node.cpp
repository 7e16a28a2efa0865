#include "pipe/engine/pipeline_node.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "pipe/data/memory.h"
#include "pipe/engine/plain_order.h"

namespace weft::pipe {

namespace autograd = torch::autograd;

PipelineNode::PipelineNode(std::unique_ptr<MiniBatch> run) : run_(std::move(run)) {
  for (const at::Tensor& tensor : run_->input().tensors)
    inputs_.emplace_back(tensor, false);
}

Wanted PipelineNode::wanted(const MiniBatch& run) const {
  const std::size_t inputs = run.input().tensors.size();
  Wanted wanted;
  for (const auto k : c10::irange(num_outputs())) {
    (k < inputs ? wanted.inputs : wanted.parameters).push_back(task_should_compute_output(k));
    if (k >= inputs) wanted.accumulators.push_back(freeAccumulator(k));
  }
  return wanted;
}

// An accumulator may take a gradient piece by piece where nobody sees that: no hook is called with
// it, and torch.autograd.grad was not asked for it. On an accelerator the engine chooses the stream
// on which an accumulator runs, and the allocator keeps memory anyway.
autograd::Node* PipelineNode::freeAccumulator(std::size_t output) const {
  auto* const node = dynamic_cast<autograd::AccumulateGrad*>(next_edge(output).function.get());
  if (node == nullptr || !node->variable.is_cpu() || !node->tensor_pre_hooks().empty() ||
      !node->pre_hooks().empty() || !node->post_hooks().empty() ||
      !node->retains_grad_hooks().empty() || node->tensor_post_acc_grad_hooks()) {
    return nullptr;
  }
  const auto* const asked = autograd::get_current_graph_task_exec_info();
  if (asked == nullptr || asked->empty()) return node;
  const auto it = asked->find(node);
  return it != asked->end() && it->second.needed_ && !it->second.captures_ ? node : nullptr;
}

autograd::variable_list PipelineNode::apply(autograd::variable_list&& grads) {
  auto arrived = [&] {
    const std::lock_guard lock(mutex_);
    return arrived_.extract(autograd::get_current_graph_task_id());
  }();
  if (arrived.empty()) return backward(grads);
  for (const c10::Event& made : arrived.mapped().made)
    made.block(c10::impl::VirtualGuardImpl(made.device_type()).getStream(made.device()));
  return backward(arrived.mapped().grads);
}

void PipelineNode::setArrived(Arrived arrived) {
  const std::lock_guard lock(mutex_);
  arrived_.insert_or_assign(autograd::get_current_graph_task_id(), std::move(arrived));
}

autograd::variable_list PipelineNode::backward(const autograd::variable_list& grads) {
  const std::shared_ptr<MiniBatch> run = [&] {
    const std::lock_guard lock(mutex_);
    return run_;
  }();
  TORCH_CHECK(run, autograd::ERR_BACKWARD_TWICE);
  const auto alone = run->beginBackward();
  if (at::GradMode::is_enabled()) {
    std::vector<at::Tensor> inputs;
    // One tensor given twice stays one, also where saved-tensor hooks make a new one each time.
    for (const auto k : c10::irange(inputs_.size())) {
      const std::size_t first = firstSame(run->input().tensors, k);
      inputs.push_back(first < k ? at::Tensor(inputs[first]) : inputs_[k].unpack());
    }
    return gradientsWithGraph(*run, inputs, grads, wanted(*run));
  }
  return run->backward(grads, wanted(*run), autograd::get_current_graph_task_keep_graph());
}

void PipelineNode::release_variables() {
  std::shared_ptr<MiniBatch> run;  // dropped without the lock
  std::unordered_map<int, Arrived> arrived;
  {
    const std::lock_guard lock(mutex_);
    run_.swap(run);
    arrived_.swap(arrived);
  }
  for (autograd::SavedVariable& saved : inputs_)
    saved.reset_data();
}

BackwardEntryNode::BackwardEntryNode(PipelineNode& node, NodePtr owner) : node_(node) {
  node_.add_input_metadata(at::empty({0}));
  add_next_edge({std::move(owner), 0});
}

autograd::variable_list BackwardEntryNode::apply(autograd::variable_list&& grads) {
  PipelineNode::Arrived arrived;
  std::vector<c10::Device> devices;
  for (const at::Tensor& grad : grads) {
    if (!grad.defined() || !isAccelerator(grad.device())) continue;
    if (std::find(devices.begin(), devices.end(), grad.device()) != devices.end()) continue;
    devices.push_back(grad.device());
    const c10::impl::VirtualGuardImpl guard(grad.device().type());
    const c10::Stream stream = guard.getStream(grad.device());
    arrived.made.emplace_back(grad.device().type());
    arrived.made.back().record(stream);
  }
  arrived.grads = std::move(grads);
  node_.setArrived(std::move(arrived));
  return {at::empty({0})};
}

}  // namespace weft::pipe
