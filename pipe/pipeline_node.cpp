#include "pipe/pipeline_node.h"

#include <c10/util/irange.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "pipe/plain_run.h"

namespace weft::pipe {

namespace autograd = torch::autograd;

PipelineNode::PipelineNode(std::unique_ptr<MiniBatch> batch) : batch_(std::move(batch)) {
  for (const at::Tensor& tensor : batch_->input().tensors)
    inputs_.emplace_back(tensor, false);
}

Wanted PipelineNode::wanted() const {
  const std::size_t inputs = batch_->input().tensors.size();
  Wanted wanted;
  for (const auto k : c10::irange(num_outputs())) {
    (k < inputs ? wanted.inputs : wanted.parameters).push_back(task_should_compute_output(k));
  }
  return wanted;
}

autograd::variable_list PipelineNode::apply(autograd::variable_list&& grads) {
  TORCH_CHECK(batch_, autograd::ERR_BACKWARD_TWICE);
  if (at::GradMode::is_enabled()) return differentiable(grads);
  MiniBatch::Gradients found =
      batch_->backward(grads, wanted(), autograd::get_current_graph_task_keep_graph());
  autograd::variable_list result = std::move(found.inputs);
  for (at::Tensor& grad : found.parameters)
    result.push_back(std::move(grad));
  return result;
}

autograd::variable_list PipelineNode::differentiable(const autograd::variable_list& grads) {
  std::vector<at::Tensor> inputs;
  for (const autograd::SavedVariable& saved : inputs_)
    inputs.push_back(saved.unpack());
  return gradientsWithGraph(*batch_, inputs, grads, wanted());
}

void PipelineNode::release_variables() {
  batch_.reset();
  for (autograd::SavedVariable& saved : inputs_)
    saved.reset_data();
}

}  // namespace weft::pipe
