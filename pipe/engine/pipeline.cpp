#include "pipe/engine/pipeline.h"

#include <c10/util/irange.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "pipe/engine/double_backward.h"
#include "pipe/engine/pipeline_node.h"

namespace weft::pipe {

namespace autograd = torch::autograd;

Pipeline::Pipeline(std::vector<std::shared_ptr<Stage>> stages, std::vector<c10::Device> devices,
                   std::vector<SkipRoute> routes, ThreadHooks hooks)
    : context_(std::make_shared<PipelineContext>(std::move(stages), std::move(devices),
                                                 std::move(routes), std::move(hooks))) {}

Pipeline::~Pipeline() { rest(); }

void Pipeline::rest() { context_->executor->stop(); }
std::size_t Pipeline::threads() const { return context_->executor->threads(); }
Threading Pipeline::threading() const { return context_->threading.load(); }
void Pipeline::setThreading(Threading threading) { context_->threading.store(threading); }
void Pipeline::startRecording() { context_->timeline.start(); }
std::vector<Event> Pipeline::stopRecording() { return context_->timeline.stop(); }

Batch Pipeline::run(ForwardInput input) {
  for (const auto& stage : context_->stages)
    stage->prepare();
  if (input.plain || isTransformed()) return plainForward(*context_, input);
  std::vector<std::shared_ptr<StageTensors>> tensors;
  bool grad = false;
  bool plain = false;
  if (at::GradMode::is_enabled()) {
    for (const at::Tensor& tensor : input.tensors)
      grad |= tensor.requires_grad();
    for (const auto j : c10::irange(context_->stages.size())) {
      {
        // A stage that runs for another caller may have other tensors just now.
        const std::lock_guard alone(context_->in_use[j]);
        tensors.push_back(context_->stages[j]->tensors());
      }
      plain |= tensors.back()->uninitialized;
      for (const at::Tensor& tensor : tensors.back()->tensors) {
        grad |= tensor.requires_grad();
        // Its history may lead to another parameter, by a way that a stage's own graph must not go.
        plain |= !tensor.is_leaf();
      }
    }
  }
  if (plain) return plainForward(*context_, input);
  if (!grad) tensors.clear();
  auto batch = std::make_unique<ForwardRun>(context_, std::move(input), std::move(tensors));
  autograd::edge_list edges;
  if (grad) {
    // Before the boundary are there.
    for (const at::Tensor& tensor : batch->input().tensors) {
      edges.push_back(autograd::impl::gradient_edge(tensor));
    }
    for (const at::Tensor& tensor : batch->parameters()) {
      edges.push_back(autograd::impl::gradient_edge(tensor));
    }
  }
  ForwardRun::Result result = batch->forward();
  bool any = false;
  for (const bool differentiable : result.differentiable)
    any |= differentiable;
  if (!any) return std::move(result.gathered.batch);

  const auto stages = makeNode<PipelineNode>(std::move(batch));
  stages->set_next_edges(std::move(edges));
  const NodePtr node = context_->accelerated ? NodePtr(makeNode<BackwardEntryNode>(*stages, stages))
                                             : NodePtr(stages);
  for (const auto s : c10::irange(result.differentiable.size())) {
    at::Tensor& tensor = result.gathered.batch.tensors[s];
    if (result.differentiable[s]) {
      autograd::set_history(tensor, node);
    } else {
      node->add_input_metadata(autograd::Node::undefined_input());
    }
  }
  return std::move(result.gathered.batch);
}

}  // namespace weft::pipe
