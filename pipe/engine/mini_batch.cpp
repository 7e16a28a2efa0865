#include "pipe/engine/mini_batch.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

#include "pipe/cell/gradient_boundary.h"
#include "pipe/engine/plain_order.h"

namespace weft::pipe {

namespace {

// The gradient of a tensor that was split into chunks; undefined if no piece has one.
at::Tensor joinedGradient(std::vector<at::Tensor> pieces, const at::Tensor& whole,
                          std::size_t chunks) {
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

// What the code of compiled stages depends on; nothing if none is compiled.
std::optional<std::size_t> compileKey(const PipelineContext& pipeline, const ForwardInput& input,
                                      const MiniBatchContext& context) {
  if (!pipeline.compiled) return std::nullopt;
  std::size_t digest = c10::get_hash(
      input.chunks, input.training, context.grad, static_cast<int>(input.checkpoint),
      at::autocast::is_autocast_enabled(at::kCPU), at::autocast::get_autocast_dtype(at::kCPU));
  const auto add = [&](const auto&... parts) {
    digest = c10::hash_combine(digest, c10::get_hash(parts...));
  };
  for (const at::Tensor& tensor : input.tensors) {
    add(tensor.sizes(), tensor.scalar_type(), tensor.requires_grad());
    if (tensor.layout() == at::kStrided) add(tensor.strides());
  }
  for (const auto& of_stage : context.tensors) {
    for (const at::Tensor& tensor : of_stage->tensors)
      add(tensor.requires_grad());
  }
  return digest;
}

}  // namespace

MiniBatch::MiniBatch(std::shared_ptr<PipelineContext> pipeline, ForwardInput input,
                     std::vector<std::shared_ptr<StageTensors>> tensors)
    : pipeline_(std::move(pipeline)),
      input_(std::move(input)),
      context_(*pipeline_, input_.training, std::move(tensors)),
      compile_key_(compileKey(*pipeline_, input_, context_)),
      input_versions_(context_.grad ? versionsOf(input_.tensors) : std::vector<std::uint32_t>()) {}

void MiniBatch::run(PipelineJob& job, ThreadPolicy& policy) {
  const Schedule& schedule = job.schedule();
  if (schedule.size() == 0) return;
  StageExecutor& executor = *pipeline_->executor;
  const Threading threading = pipeline_->threading.load(std::memory_order_relaxed);
  // Hooks on saved tensors, and modes, may count on the order in which they are called, and are
  // objects that several threads must not use at once.
  if (threading == Threading::kInline || pipeline_->workers == 1 || input_.in_order ||
      context_.thread_state.hasHooks() || isWatched()) {
    executor.run(schedule, job, Running::kInline);
  } else if (threading == Threading::kThreads) {
    executor.run(schedule, job, Running::kThreads);
  } else {
    // The stages of a single micro-batch have nothing to overlap with.
    const bool alone = context_.micro_batches == 1;
    context_.times = StageTimes(pipeline_->stages.size());
    executor.run(schedule, job, alone ? Running::kInline : policy.choose(compile_key_));
    policy.learn(context_.times, compile_key_);
  }
}

// What they refer to, whether gradients are wanted or not.
std::vector<at::Tensor> MiniBatch::tensorsOfStages() const {
  std::vector<at::Tensor> found;
  for (const auto j : c10::irange(pipeline_->stages.size())) {
    const std::lock_guard alone(pipeline_->in_use[j]);
    const auto tensors =
        context_.grad ? context_.tensors[j]->tensors : pipeline_->stages[j]->parametersAndBuffers();
    found.insert(found.end(), tensors.begin(), tensors.end());
  }
  return found;
}

// Tensors that are not joined of several pieces are in memory that the graphs use, and another
// output, the input, a parameter or a buffer may be in it too. Autograd would not learn that a
// change of the one in place changes the other. The same where no gradient is wanted: what a caller
// may do with an output does not depend on that, nor on the number of micro-batches.
void MiniBatch::separateOutputs(Gathered& gathered) const {
  auto& tensors = gathered.batch.tensors;
  std::optional<std::vector<at::Tensor>> of_stages;  // asked for once, if at all
  for (const auto s : c10::irange(tensors.size())) {
    if (gathered.sources[s].micro_batch < 0 && context_.micro_batches > 1) continue;
    if (!of_stages) of_stages = tensorsOfStages();
    const auto overlaps = [&](const at::Tensor& other) {
      return !other.is_same(tensors[s]) && mayOverlap(other, tensors[s]);
    };
    const auto end = tensors.begin() + static_cast<std::ptrdiff_t>(s);
    if (std::none_of(tensors.begin(), end, overlaps) &&
        std::none_of(input_.tensors.begin(), input_.tensors.end(), overlaps) &&
        std::none_of(of_stages->begin(), of_stages->end(), overlaps)) {
      continue;
    }
    const at::Tensor before = tensors[s];
    const at::Tensor copy = copyOf(before);
    for (at::Tensor& tensor : tensors) {
      if (tensor.is_same(before)) tensor = copy;
    }
  }
}

bool MiniBatch::isCheckpointed(std::size_t micro_batch) const {
  if (!input_.training || !context_.grad) return false;
  return input_.checkpoint == Checkpoint::kAlways ||
         (input_.checkpoint == Checkpoint::kExceptLast && micro_batch + 1 < context_.micro_batches);
}

// What the first stage is given of a micro-batch.
Activations MiniBatch::firstInput(std::vector<at::Tensor> tensors) const {
  Activations input;
  for (const auto k : c10::irange(tensors.size())) {
    const bool several = context_.micro_batches > 1;
    const bool differentiable = context_.grad && input_.tensors[k].requires_grad();
    // Needed as it is: what wants a gradient, because it stands for the caller's leaf; where other
    // pieces have gradients, because all pieces of a tensor share a version, and autograd takes a
    // change of one for a change of all; and what the other micro-batches get as well.
    const bool needed = differentiable || (several && context_.grad) ||
                        (several && input_.how[k] == Scatter::kReplicate);
    input.values.push_back(
        {std::move(tensors[k]), differentiable, needed ? Sharing::kMiniBatch : Sharing::kNone});
  }
  markAliases(input.values);
  input.payload_size = input.values.size();
  input.structure = input_.structure;
  return input;
}

MiniBatch::Result MiniBatch::forward() {
  std::vector<std::vector<at::Tensor>> pieces =
      scatter(input_.tensors, input_.how, input_.chunks, History::kDrop);
  std::optional<GradientBoundary> boundary;
  if (context_.grad) context_.ends = boundary.emplace(context_.parameters.all).edges();
  context_.micro_batches = pieces.size();
  cells_.reserve(pieces.size() * pipeline_->stages.size());
  for (const auto i : c10::irange(pieces.size())) {
    for (const auto j : c10::irange(pipeline_->stages.size()))
      cells_.emplace_back(context_, CellIndex{i, j});
  }
  const auto perform = [&](PipelineJob& job, const Task& task, const RngTurn& turn) {
    const CellIndex cell = task.cell;
    Activations input = job.receive(cell);
    if (cell.stage == 0) {
      const at::NoGradGuard no_grad;
      for (Activation& activation : input.values)
        activation.value = moved(activation.value, pipeline_->devices[0]);
    }
    Activations output;
    {
      const Timeline::Span span = job.record(cell, EventKind::kForward);
      output =
          cells_[placeOf(cell)].forward(std::move(input), isCheckpointed(cell.micro_batch), turn);
    }
    job.send(cell, std::move(output));
  };
  PipelineJob job(*pipeline_, pieces.size(), gpipeForward(pieces.size(), pipeline_->worker_of),
                  PipelineJob::Direction::kForward, perform);
  for (const auto i : c10::irange(pieces.size()))
    job.passed(i, 0) = firstInput(std::move(pieces[i]));
  run(job, pipeline_->forward_policy[input_.training ? 1 : 0]);
  for (const auto j : c10::irange(context_.tensors.size())) {
    const std::lock_guard alone(pipeline_->in_use[j]);
    pipeline_->stages[j]->update(*context_.tensors[j]);
  }
  context_.parameters.noteVersions();
  return joinOutputs(job);
}

// The outputs of the last stage, joined.
MiniBatch::Result MiniBatch::joinOutputs(PipelineJob& job) {
  std::vector<Batch> batches;
  for (const auto i : c10::irange(context_.micro_batches)) {
    Activations& output = job.passed(i, pipeline_->stages.size());
    Batch batch{{}, std::move(output.structure)};
    for (Activation& activation : output.values)
      batch.tensors.push_back(std::move(activation.value));
    output_sizes_.push_back(batch.tensors.size());
    batches.push_back(std::move(batch));
  }
  Result result{gather(batches, History::kDrop), {}};
  separateOutputs(result.gathered);
  sources_ = result.gathered.sources;
  for (const Gathered::Source& source : sources_) {
    bool any = false;
    for (const auto p : c10::irange(source.tensors.size())) {
      const std::size_t i =
          source.micro_batch >= 0 ? static_cast<std::size_t>(source.micro_batch) : p;
      any |= job.passed(i, pipeline_->stages.size()).values[source.tensors[p]].differentiable;
    }
    result.differentiable.push_back(any);
  }
  return result;
}

// Gives the last stage's cells the gradients of their outputs.
void MiniBatch::splitGrads(const std::vector<at::Tensor>& grads, PipelineJob& job) const {
  const std::size_t end = pipeline_->stages.size();
  for (const auto i : c10::irange(output_sizes_.size()))
    job.passed(i, end).values.resize(output_sizes_[i]);
  for (const auto s : c10::irange(sources_.size())) {
    if (!grads[s].defined()) continue;
    for (GradPiece& piece : split(sources_[s], grads[s]))
      job.passed(piece.micro_batch, end).values[piece.tensor].value = std::move(piece.grad);
  }
}

// The gradients of the mini-batch's tensors; a micro-batch without any has left no values.
std::vector<at::Tensor> MiniBatch::joinInputGrads(PipelineJob& job) const {
  std::vector<at::Tensor> result;
  for (const auto k : c10::irange(input_.tensors.size())) {
    std::vector<at::Tensor> pieces;
    for (const auto i : c10::irange(context_.micro_batches)) {
      std::vector<Activation>& grads = job.passed(i, 0).values;
      pieces.push_back(k < grads.size() ? std::move(grads[k].value) : at::Tensor());
    }
    if (input_.how[k] == Scatter::kChunk) {
      result.push_back(joinedGradient(std::move(pieces), input_.tensors[k], input_.chunks));
    } else {
      GradientSum sum;
      for (at::Tensor& piece : pieces)
        sum.add(std::move(piece));
      result.push_back(sum.take());
    }
  }
  return result;
}

// The next backward finds the cells as this one found them.
void MiniBatch::abandonBackward() {
  for (MicroBatchCell& cell : cells_)
    cell.forgetRecomputation();
  context_.parameters.noteVersions();
}

std::unique_lock<std::mutex> MiniBatch::beginBackward() {
  std::unique_lock alone(backward_runs_, std::try_to_lock);
  TORCH_CHECK(alone.owns_lock(),
              "the backward of this Pipe output runs already, on another thread; run the backwards "
              "of one output one after the other");
  TORCH_CHECK(!spent_, torch::autograd::ERR_BACKWARD_TWICE);
  return alone;
}

std::vector<at::Tensor> MiniBatch::backward(const std::vector<at::Tensor>& grads,
                                            const Wanted& wanted, bool keep_graph) {
  const at::NoGradGuard no_grad;
  std::optional<GradientBoundary> boundary;  // for what is recomputed
  if (std::any_of(cells_.begin(), cells_.end(), [](const MicroBatchCell& cell) {
        return cell.state() == CellState::kCheckpointed;
      })) {
    context_.parameters.checkVersions();
    boundary.emplace(context_.parameters.all);
  }
  context_.recompute_ends = boundary ? boundary->edges() : context_.ends;
  GradientAccumulator sums(context_.parameters, wanted);
  const auto work = [&](CellIndex index) {
    const CellState state = cell(index).state();
    if (state == CellState::kDone || !sums.wantsAnything(index.stage)) return BackwardWork::kNone;
    return state == CellState::kCheckpointed ? BackwardWork::kRecomputeAndBackward
                                             : BackwardWork::kBackward;
  };
  const auto perform = [&](PipelineJob& job, const Task& task, const RngTurn& turn) {
    MicroBatchCell& cell = cells_[placeOf(task.cell)];
    const bool again = task.kind == TaskKind::kRecompute;
    const Timeline::Span span =
        job.record(task.cell, again ? EventKind::kRecompute : EventKind::kBackward);
    if (again) return cell.recompute(turn);
    const Activations output_grads = job.receive(task.cell);
    job.send(task.cell, cell.backward(output_grads, sums, keep_graph, turn));
  };
  PipelineJob job(
      *pipeline_, context_.micro_batches,
      gpipeBackward(context_.micro_batches, pipeline_->worker_of, pipeline_->consumers, work),
      PipelineJob::Direction::kBackward, perform);
  splitGrads(grads, job);
  spent_ = !keep_graph;
  try {
    run(job, pipeline_->backward_policy);
  } catch (...) {
    if (keep_graph) abandonBackward();
    throw;
  }
  context_.parameters.noteVersions();
  std::vector<at::Tensor> found = joinInputGrads(job);
  std::ranges::move(sums.take(), std::back_inserter(found));
  return found;
}

}  // namespace weft::pipe
