#include "pipe/engine/forward_run.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <unordered_map>

#include "pipe/data/memory.h"
#include "pipe/engine/gradient_sum.h"
#include "pipe/engine/jobs.h"
#include "pipe/schedule/effort.h"

namespace weft::pipe {

namespace {

// Runs a job in the way that has proved faster, and measures it when that is to be found out.
void runAtPace(PipelineContext& pipeline, Pace& pace, const TaskGraph& graph, Job& job) {
  const auto tasks = static_cast<double>(graph.size());
  const auto [running, measured] = pace.choose();
  if (!measured) {
    const std::int64_t begin = monotonicNanos();
    pipeline.executor->run(graph, job, running);
    pace.report(running, static_cast<double>(monotonicNanos() - begin) * 1e-9 / tasks);
    return;
  }
  MeasuredJob trial(job, graph);
  pipeline.executor->run(graph, trial, running);
  const double on_threads = onThreads(graph, trial.efforts()) / tasks;
  if (running == Running::kThreads) {
    pace.reportThreads(on_threads);
  } else {
    pace.reportInLine(inLine(trial.efforts()) / tasks, on_threads);
  }
}

at::Tensor joined(std::vector<at::Tensor> pieces, const at::Tensor& whole, std::size_t chunks) {
  bool any = false;
  for (const at::Tensor& piece : pieces)
    any |= piece.defined();
  if (!any) return {};
  if (pieces.size() == 1) return std::move(pieces[0]);
  std::vector<at::Tensor> shapes;
  for (const auto i : c10::irange(pieces.size())) {
    if (pieces[i].defined()) continue;
    if (shapes.empty()) shapes = whole.detach().chunk(static_cast<std::int64_t>(chunks));
    pieces[i] = at::zeros_like(shapes[i]);
  }
  return at::cat(pieces);
}

at::Tensor summed(const std::vector<at::Tensor>& pieces) {
  at::Tensor sum;
  for (const at::Tensor& piece : pieces)
    sum = sumOf(sum, piece);
  return sum;
}

}  // namespace

ForwardRun::ForwardRun(std::shared_ptr<PipelineContext> pipeline, ForwardInput input,
                       std::vector<std::shared_ptr<StageTensors>> tensors)
    : pipeline_(std::move(pipeline)),
      input_(std::move(input)),
      parameters_of_(pipeline_->stages.size()),
      tensors_(std::move(tensors)),
      grad_(!tensors_.empty()) {
  std::unordered_map<c10::TensorImpl*, std::size_t> place_of;
  for (const auto j : c10::irange(tensors_.size())) {
    for (const at::Tensor& tensor : tensors_[j]->tensors) {
      if (!tensor.requires_grad()) continue;
      const auto [it, is_new] = place_of.emplace(tensor.unsafeGetTensorImpl(), parameters_.size());
      parameters_of_[j].push_back(it->second);
      if (is_new) parameters_.push_back(tensor);
    }
  }
}

// Hooks on saved tensors may count on the order in which they are called, so no threads then.
void ForwardRun::run(Pace& pace, const TaskGraph& graph, Job& job) const {
  if (graph.size() == 0) return;
  const Threading threading = pipeline_->threading.load(std::memory_order_relaxed);
  if (threading == Threading::kInline || pipeline_->workers == 1 ||
      setting_->thread_state.hasHooks()) {
    pipeline_->executor->run(graph, job, Running::kInline);
  } else if (threading == Threading::kThreads) {
    pipeline_->executor->run(graph, job, Running::kThreads);
  } else {
    runAtPace(*pipeline_, pace, graph, job);
  }
}

void ForwardRun::noteVersions() {
  versions_.clear();
  for (const at::Tensor& parameter : parameters_)
    versions_.push_back(parameter._version());
}

void ForwardRun::checkParameters() const {
  for (const auto p : c10::irange(parameters_.size())) {
    const std::uint32_t now = parameters_[p]._version();
    TORCH_CHECK(now == versions_[p],
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: a parameter of shape ",
                parameters_[p].sizes(), " of a Pipe is at version ", now,
                ", and its stage, which "
                "has to run again for the backward, ran with version ",
                versions_[p], ". Call backward() before the parameters are changed.");
  }
}

// What is not joined of several pieces is in memory that the graphs use, and that of another output
// or of the input may be the same. Autograd would not learn that a change of the one in place
// changes the other.
void ForwardRun::separateOutputs(Gathered& gathered) const {
  auto& tensors = gathered.batch.tensors;
  for (const auto s : c10::irange(tensors.size())) {
    if (gathered.sources[s].micro_batch < 0 && micro_batches_ > 1) continue;
    const auto overlaps = [&](const at::Tensor& other) {
      return !other.is_same(tensors[s]) && mayOverlap(other, tensors[s]);
    };
    const auto same = static_cast<std::ptrdiff_t>(s);
    if (std::any_of(tensors.begin(), tensors.begin() + same, overlaps) ||
        std::any_of(input_.tensors.begin(), input_.tensors.end(), overlaps)) {
      const at::Tensor before = tensors[s];
      const at::Tensor copy = before.clone();
      for (at::Tensor& tensor : tensors) {
        if (tensor.is_same(before)) tensor = copy;
      }
    }
  }
}

bool ForwardRun::checkpointed(std::size_t micro_batch) const {
  if (!input_.training || !grad_) return false;
  switch (input_.checkpoint) {
    case Checkpoint::kNever:
      return false;
    case Checkpoint::kExceptLast:
      return micro_batch + 1 < micro_batches_;
    case Checkpoint::kAlways:
      return true;
  }
  return false;
}

std::vector<torch::autograd::edge_list> ForwardRun::edgesPerStage(
    const GradientBoundary& boundary) const {
  std::vector<torch::autograd::edge_list> edges(stages());
  for (const auto j : c10::irange(stages())) {
    for (const std::size_t place : parameters_of_[j])
      edges[j].push_back(boundary.edges()[place]);
  }
  return edges;
}

ForwardRun::Result ForwardRun::forward() {
  std::vector<std::vector<at::Tensor>> pieces =
      scatter(input_.tensors, input_.how, input_.chunks, History::kDrop);
  micro_batches_ = pieces.size();
  cells_ = std::vector<Cell>(micro_batches_ * stages());
  std::vector<bool> differentiable;
  for (const at::Tensor& tensor : input_.tensors) {
    differentiable.push_back(grad_ && tensor.requires_grad());
  }

  std::optional<GradientBoundary> boundary;
  if (grad_) boundary.emplace(parameters_);
  setting_.emplace(CellSetting{
      *pipeline_,
      micro_batches_,
      input_.training,
      grad_,
      isRunAgain(),
      SavedThreadState::here(pipeline_->devices),
      tensors_,
      boundary ? edgesPerStage(*boundary) : std::vector<torch::autograd::edge_list>(stages()),
      {}});

  ForwardJob job(*this, std::move(pieces), differentiable);
  run(pipeline_->forward_pace[input_.training ? 1 : 0], job.graph(), job);
  for (const auto j : c10::irange(tensors_.size())) {
    const std::lock_guard alone(pipeline_->in_use[j]);
    pipeline_->stages[j]->update(*tensors_[j]);
  }
  noteVersions();

  std::vector<Batch> outputs;
  for (const auto i : c10::irange(micro_batches_)) {
    Batch batch{{}, std::move(job.outputs[i].structure)};
    for (Wire& wire : job.outputs[i].wires)
      batch.tensors.push_back(std::move(wire.value));
    output_wires_.push_back(batch.tensors.size());
    outputs.push_back(std::move(batch));
  }
  Result result{gather(outputs, History::kDrop), {}};
  if (grad_) separateOutputs(result.gathered);
  for (const Gathered::Source& source : result.gathered.sources) {
    bool any = false;
    for (const auto p : c10::irange(source.tensors.size())) {
      const std::size_t i =
          source.micro_batch >= 0 ? static_cast<std::size_t>(source.micro_batch) : p;
      any |= job.outputs[i].wires[source.tensors[p]].differentiable;
    }
    result.differentiable.push_back(any);
  }
  sources_ = result.gathered.sources;
  return result;
}

ForwardRun::Gradients ForwardRun::backward(const std::vector<at::Tensor>& grads,
                                           const Wanted& wanted, bool keep_graph) {
  const at::NoGradGuard no_grad;
  const std::size_t last = stages() - 1;
  for (const auto i : c10::irange(micro_batches_)) {
    cell(i, last).output_grads.assign(output_wires_[i], {});
  }
  for (const auto s : c10::irange(sources_.size())) {
    if (!grads[s].defined()) continue;
    for (GradPiece& piece : split(sources_[s], grads[s])) {
      cell(piece.micro_batch, last).output_grads[piece.tensor] = std::move(piece.grad);
    }
  }

  std::optional<GradientBoundary> boundary;  // for what is recomputed
  if (std::any_of(cells_.begin(), cells_.end(),
                  [](const Cell& cell) { return cell.state() == CellState::kCheckpointed; })) {
    checkParameters();
    boundary.emplace(parameters_);
  }
  setting_->gates_again = boundary ? edgesPerStage(*boundary) : setting_->boundary;
  BackwardJob job(*this, wanted, keep_graph);
  run(pipeline_->backward_pace, job.graph(), job);
  noteVersions();

  Gradients result;
  result.parameters.resize(parameters_.size());
  for (const auto j : c10::irange(stages())) {
    for (const auto k : c10::irange(job.wanted_of[j].size())) {
      at::Tensor& sum = result.parameters[job.wanted_of[j][k]];
      at::Tensor& part = job.sums[j][k];
      if (part.defined()) sum = sumOf(sum, part);
    }
  }
  for (const auto k : c10::irange(input_.tensors.size())) {
    std::vector<at::Tensor> of_input;
    for (const auto i : c10::irange(micro_batches_)) {
      const auto& row = job.input_grads[i];
      of_input.push_back(k < row.size() ? row[k] : at::Tensor());
    }
    result.inputs.push_back(input_.how[k] == Scatter::kChunk
                                ? joined(std::move(of_input), input_.tensors[k], input_.chunks)
                                : summed(of_input));
  }
  return result;
}

void ForwardRun::drop() {
  for (Cell& cell : cells_)
    cell.drop();
  cells_.clear();
  input_ = {};
}

}  // namespace weft::pipe
