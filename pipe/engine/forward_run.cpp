#include "pipe/engine/forward_run.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

#include "pipe/data/memory.h"
#include "pipe/engine/backward_job.h"
#include "pipe/engine/forward_job.h"

namespace weft::pipe {

namespace {

// The gradient of a tensor that was split into chunks; undefined if no piece has one.
at::Tensor joined(std::vector<at::Tensor> pieces, const at::Tensor& whole, std::size_t chunks) {
  const auto isDefined = [](const at::Tensor& piece) { return piece.defined(); };
  if (std::none_of(pieces.begin(), pieces.end(), isDefined)) return {};
  if (pieces.size() == 1) return std::move(pieces[0]);
  std::vector<at::Tensor> shapes;
  for (const auto i : c10::irange(pieces.size())) {
    if (pieces[i].defined()) continue;
    if (shapes.empty()) shapes = whole.detach().chunk(static_cast<std::int64_t>(chunks));
    pieces[i] = at::zeros_like(shapes[i]);
  }
  return at::cat(pieces);
}

}  // namespace

ForwardRun::ForwardRun(std::shared_ptr<PipelineContext> pipeline, ForwardInput input,
                       std::vector<std::shared_ptr<StageTensors>> tensors)
    : pipeline_(std::move(pipeline)),
      input_(std::move(input)),
      input_versions_(versionsOf(input_.tensors)),
      tensors_(std::move(tensors)),
      parameters_(tensors_, pipeline_->stages.size()),
      grad_(!tensors_.empty()) {}

void ForwardRun::run(PipelineJob& job, ThreadPolicy& policy) {
  const Schedule& schedule = job.schedule();
  if (schedule.size() == 0) return;
  StageExecutor& executor = *pipeline_->executor;
  const Threading threading = pipeline_->threading.load(std::memory_order_relaxed);
  // Hooks on saved tensors may count on the order in which they are called, so no threads then.
  if (threading == Threading::kInline || pipeline_->workers == 1 ||
      context_->thread_state.hasHooks()) {
    executor.run(schedule, job, Running::kInline);
  } else if (threading == Threading::kThreads) {
    executor.run(schedule, job, Running::kThreads);
  } else {
    // The stages of a single micro-batch have nothing to overlap with.
    const bool alone = context_->micro_batches == 1;
    context_->times = StageTimes(stages());
    executor.run(schedule, job, alone ? Running::kInline : policy.choose(pipeline_->compiled));
    policy.learn(context_->times);
  }
}

// Tensors that are not joined of several pieces are in memory that the graphs use, and another
// output or the input may be in it too. Autograd would not learn that a change of the one in place
// changes the other.
void ForwardRun::separateOutputs(Gathered& gathered) const {
  auto& tensors = gathered.batch.tensors;
  for (const auto s : c10::irange(tensors.size())) {
    if (gathered.sources[s].micro_batch < 0 && context_->micro_batches > 1) continue;
    const auto overlaps = [&](const at::Tensor& other) {
      return !other.is_same(tensors[s]) && mayOverlap(other, tensors[s]);
    };
    const auto end = tensors.begin() + static_cast<std::ptrdiff_t>(s);
    if (std::none_of(tensors.begin(), end, overlaps) &&
        std::none_of(input_.tensors.begin(), input_.tensors.end(), overlaps)) {
      continue;
    }
    const at::Tensor before = tensors[s];
    const at::Tensor copy = before.clone();
    for (at::Tensor& tensor : tensors) {
      if (tensor.is_same(before)) tensor = copy;
    }
  }
}

bool ForwardRun::isCheckpointed(std::size_t micro_batch) const {
  if (!input_.training || !grad_) return false;
  switch (input_.checkpoint) {
    case Checkpoint::kNever:
      return false;
    case Checkpoint::kExceptLast:
      return micro_batch + 1 < context_->micro_batches;
    case Checkpoint::kAlways:
      return true;
  }
  return false;
}

std::vector<Activations> ForwardRun::firstInputs(
    std::vector<std::vector<at::Tensor>> micro_batches) const {
  std::vector<Activations> inputs(micro_batches.size());
  for (const auto i : c10::irange(micro_batches.size())) {
    for (const auto k : c10::irange(micro_batches[i].size())) {
      const bool replicated = input_.how[k] == Scatter::kReplicate && micro_batches.size() > 1;
      inputs[i].values.push_back({std::move(micro_batches[i][k]),
                                  grad_ && input_.tensors[k].requires_grad(),
                                  replicated ? Sharing::kReplicated : Sharing::kNone});
    }
    markAliases(inputs[i].values);
    inputs[i].payload = inputs[i].values.size();
    inputs[i].structure = input_.structure;
  }
  return inputs;
}

ForwardRun::Result ForwardRun::forward() {
  std::vector<std::vector<at::Tensor>> pieces =
      scatter(input_.tensors, input_.how, input_.chunks, History::kDrop);
  std::optional<GradientBoundary> boundary;
  if (grad_) boundary.emplace(parameters_.all());
  context_.emplace(MiniBatchContext{*pipeline_,
                                    pieces.size(),
                                    input_.training,
                                    grad_,
                                    isRunAgain(),
                                    SavedThreadState::here(pipeline_->devices),
                                    tensors_,
                                    boundary ? parameters_.edgesPerStage(*boundary)
                                             : std::vector<torch::autograd::edge_list>(stages()),
                                    {}});
  cells_.emplace(*context_);
  std::vector<bool> checkpointed;
  for (const auto i : c10::irange(pieces.size()))
    checkpointed.push_back(isCheckpointed(i));

  ForwardJob job(*context_, *cells_, firstInputs(std::move(pieces)), std::move(checkpointed));
  run(job, pipeline_->forward_policy[input_.training ? 1 : 0]);
  for (const auto j : c10::irange(tensors_.size())) {
    const std::lock_guard alone(pipeline_->in_use[j]);
    pipeline_->stages[j]->update(*tensors_[j]);
  }
  parameters_.noteVersions();

  std::vector<Activations> outputs = job.takeOutputs();
  std::vector<Batch> batches;
  for (Activations& output : outputs) {
    Batch batch{{}, std::move(output.structure)};
    for (Activation& activation : output.values)
      batch.tensors.push_back(std::move(activation.value));
    output_sizes_.push_back(batch.tensors.size());
    batches.push_back(std::move(batch));
  }
  Result result{gather(batches, History::kDrop), {}};
  if (grad_) separateOutputs(result.gathered);
  sources_ = result.gathered.sources;
  for (const Gathered::Source& source : sources_) {
    bool any = false;
    for (const auto p : c10::irange(source.tensors.size())) {
      const std::size_t i =
          source.micro_batch >= 0 ? static_cast<std::size_t>(source.micro_batch) : p;
      any |= outputs[i].values[source.tensors[p]].differentiable;
    }
    result.differentiable.push_back(any);
  }
  return result;
}

// Per micro-batch, the gradients of the last stage's outputs.
std::vector<std::vector<at::Tensor>> ForwardRun::splitGrads(
    const std::vector<at::Tensor>& grads) const {
  std::vector<std::vector<at::Tensor>> result;
  for (const std::size_t size : output_sizes_)
    result.emplace_back(size);
  for (const auto s : c10::irange(sources_.size())) {
    if (!grads[s].defined()) continue;
    for (GradPiece& piece : split(sources_[s], grads[s]))
      result[piece.micro_batch][piece.tensor] = std::move(piece.grad);
  }
  return result;
}

// `grads`: per micro-batch, of its tensors; a micro-batch may have none.
std::vector<at::Tensor> ForwardRun::joinInputGrads(
    std::vector<std::vector<at::Tensor>> grads) const {
  std::vector<at::Tensor> result;
  for (const auto k : c10::irange(input_.tensors.size())) {
    std::vector<at::Tensor> pieces;
    for (std::vector<at::Tensor>& of_micro_batch : grads)
      pieces.push_back(k < of_micro_batch.size() ? std::move(of_micro_batch[k]) : at::Tensor());
    if (input_.how[k] == Scatter::kChunk) {
      result.push_back(joined(std::move(pieces), input_.tensors[k], input_.chunks));
    } else {
      GradientSum sum;
      for (at::Tensor& piece : pieces)
        sum.add(std::move(piece));
      result.push_back(sum.take());
    }
  }
  return result;
}

ForwardRun::Gradients ForwardRun::backward(const std::vector<at::Tensor>& grads,
                                           const Wanted& wanted, bool keep_graph) {
  const std::unique_lock alone(backward_runs_, std::try_to_lock);
  TORCH_CHECK(alone.owns_lock(),
              "the backward of this Pipe output runs already, on another thread; run the backwards "
              "of one output one after the other");
  const at::NoGradGuard no_grad;
  std::optional<GradientBoundary> boundary;  // for what is recomputed
  if (cells_->any(CellState::kCheckpointed)) {
    parameters_.checkVersions();
    boundary.emplace(parameters_.all());
  }
  context_->recompute_boundary =
      boundary ? parameters_.edgesPerStage(*boundary) : context_->boundary;
  GradientAccumulator accumulator(parameters_, wanted);
  BackwardJob job(*context_, *cells_, accumulator, splitGrads(grads), keep_graph);
  run(job, pipeline_->backward_policy);
  parameters_.noteVersions();
  return {joinInputGrads(job.takeInputGrads()), accumulator.take()};
}

}  // namespace weft::pipe
