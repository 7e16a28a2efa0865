#include "pipe/engine/pipeline.h"

#include <c10/util/irange.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>

#include "pipe/engine/pipeline_node.h"
#include "pipe/engine/plain_order.h"

namespace weft::pipe {

namespace autograd = torch::autograd;

namespace {

// What the stages refer to, and how the mini-batch has to run because of it.
struct StagesNow {
  std::vector<std::shared_ptr<StageTensors>> tensors;  // empty: no gradients are wanted
  bool in_plain_order = false;                         // see plain_order.h
};

StagesNow lookAt(PipelineContext& context, const ForwardInput& input) {
  StagesNow now;
  if (!at::GradMode::is_enabled()) return now;
  bool grad = false;
  for (const at::Tensor& tensor : input.tensors)
    grad |= tensor.requires_grad();
  for (const auto j : c10::irange(context.stages.size())) {
    {
      // A stage that runs for another caller may have other tensors just now.
      const std::lock_guard alone(context.in_use[j]);
      now.tensors.push_back(context.stages[j]->tensors());
    }
    now.in_plain_order |= now.tensors.back()->uninitialized;
    for (const at::Tensor& tensor : now.tensors.back()->tensors) {
      grad |= tensor.requires_grad();
      // Its history may lead to another parameter, by a way that a stage's own graph must not go.
      now.in_plain_order |= !tensor.is_leaf();
    }
  }
  if (!grad) now.tensors.clear();
  return now;
}

// Makes the mini-batch one node of autograd's graph. `edges`: of its inputs and parameters.
void setHistory(MiniBatch::Result& result, std::unique_ptr<MiniBatch> run,
                autograd::edge_list edges, bool accelerated) {
  const auto stages = makeNode<PipelineNode>(std::move(run));
  stages->set_next_edges(std::move(edges));
  const NodePtr node =
      accelerated ? NodePtr(makeNode<BackwardEntryNode>(*stages, stages)) : NodePtr(stages);
  for (const auto s : c10::irange(result.differentiable.size())) {
    if (result.differentiable[s]) {
      autograd::set_history(result.gathered.batch.tensors[s], node);
    } else {
      node->add_input_metadata(autograd::Node::undefined_input());
    }
  }
}

}  // namespace

Pipeline::Pipeline(std::vector<std::shared_ptr<Stage>> stages, std::vector<c10::Device> devices,
                   std::vector<SkipRoute> routes, ThreadHooks hooks)
    : context_(std::make_shared<PipelineContext>(std::move(stages), std::move(devices),
                                                 std::move(routes), std::move(hooks))) {}

Pipeline::~Pipeline() { rest(); }

void Pipeline::rest() { context_->executor->stop(); }
std::size_t Pipeline::threads() const { return context_->executor->threads(); }
void Pipeline::setThreading(Threading threading) { context_->threading.store(threading); }
void Pipeline::startRecording() { context_->timeline.start(); }
std::vector<Event> Pipeline::stopRecording() { return context_->timeline.stop(); }

Batch Pipeline::run(ForwardInput input) {
  for (const auto& stage : context_->stages)
    stage->prepare();
  if (input.in_plain_order || isTransformed() || isWatched())
    return forwardInPlainOrder(*context_, input);
  StagesNow now = lookAt(*context_, input);
  if (now.in_plain_order) return forwardInPlainOrder(*context_, input);
  const bool grad = !now.tensors.empty();
  auto run = std::make_unique<MiniBatch>(context_, std::move(input), std::move(now.tensors));
  autograd::edge_list edges;
  if (grad) {
    // Before the forward puts its boundary in place of the parameters' accumulators.
    for (const at::Tensor& tensor : run->input().tensors)
      edges.push_back(autograd::impl::gradient_edge(tensor));
    for (const at::Tensor& tensor : run->context().parameters.all)
      edges.push_back(autograd::impl::gradient_edge(tensor));
  }
  MiniBatch::Result result = run->forward();
  const auto& differentiable = result.differentiable;
  if (std::find(differentiable.begin(), differentiable.end(), true) != differentiable.end())
    setHistory(result, std::move(run), std::move(edges), context_->accelerated);
  return std::move(result.gathered.batch);
}

}  // namespace weft::pipe
