#include "pipe/engine/jobs.h"

#include <ATen/Parallel.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <optional>

#include "pipe/engine/gradient_sum.h"

namespace weft::pipe {

namespace {

// A gradient as it comes from autograd may be shared with another, and is then not to be added to.
// A weight's is often a view (a transposed product, of nn.Linear), whose base nobody but it holds.
bool isNobodyElses(const at::Tensor& grad) {
  if (grad.layout() != at::kStrided || at::isTensorSubclassLike(grad) || !grad.has_storage() ||
      !grad.is_non_overlapping_and_dense() || grad.use_count() != 1) {
    return false;
  }
  const bool is_view = !grad.is_inference() && grad.is_view();
  if (is_view && grad._base().use_count() != 1) return false;
  return grad.storage().use_count() == (is_view ? 2 : 1);
}

// For the timeline: 0 is whoever calls the pipeline.
thread_local std::size_t t_worker = 0;

}  // namespace

PipelineJob::PipelineJob(PipelineContext& pipeline)
    : pipeline_(pipeline), copier_(pipeline.copier()), outside_(currentRngScope()) {
  for (const c10::Device device : pipeline.devices) {
    if (isAccelerator(device)) {
      streams_.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }
  }
}

void PipelineJob::run(TaskId task) {
  struct AtEnd {
    TaskOrder& order;
    TaskId task;
    ~AtEnd() { order.end(task); }
  } const at_end{*order_, task};
  perform(task);
}

void PipelineJob::worker(std::size_t worker, const std::function<void()>& share) {
  const at::ThreadLocalStateGuard guard(state_);
  for (const c10::Stream stream : streams_) {
    c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
  }
  t_worker = worker + 1;
  at::init_num_threads();  // torch.set_num_threads counts for this thread as well
  share();
}

PendingCopyPtr PipelineJob::send(const std::vector<at::Tensor*>& tensors, c10::Device to,
                                 CellIndex cell) const {
  const bool away = std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor* tensor) {
    return tensor->defined() && tensor->device() != to;
  });
  if (!away) return nullptr;
  const Timeline::Span span(pipeline_.timeline, cell.stage, cell.micro_batch, EventKind::kCopy,
                            t_worker);
  // What is one tensor here is one there.
  std::vector<at::Tensor*> once;
  std::vector<std::pair<at::Tensor*, at::Tensor*>> again;
  for (at::Tensor* const tensor : tensors) {
    const auto first = std::find_if(once.begin(), once.end(), [&](const at::Tensor* other) {
      return tensor->defined() && other->is_same(*tensor);
    });
    if (first == once.end()) {
      once.push_back(tensor);
    } else {
      again.emplace_back(tensor, *first);
    }
  }
  PendingCopyPtr pending;
  if (copier_ != nullptr) {
    pending = copier_->send(once, to);
  } else {
    const at::NoGradGuard no_grad;
    for (at::Tensor* const tensor : once)
      *tensor = moved(*tensor, to);
  }
  for (const auto& [tensor, first] : again)
    *tensor = *first;
  return pending;
}

ForwardJob::ForwardJob(ForwardRun& batch, std::vector<std::vector<at::Tensor>> micro_batches,
                       const std::vector<bool>& differentiable)
    : PipelineJob(*batch.pipeline_),
      outputs(micro_batches.size()),
      run_(batch),
      order_(clockOrder(micro_batches.size(), batch.stages())),
      graph_(batch.pipeline_->workers),
      next_(micro_batches.size()),
      arriving_(micro_batches.size()),
      skips_(batch.pipeline_->routes.size()) {
  for (std::vector<Skip>& skips : skips_)
    skips.resize(micro_batches.size());
  for (const auto i : c10::irange(micro_batches.size())) {
    Cell::Input& input = next_[i];
    for (const auto k : c10::irange(micro_batches[i].size())) {
      const bool whole = batch.input_.how[k] == Scatter::kReplicate && micro_batches.size() > 1;
      input.wires.push_back({std::move(micro_batches[i][k]), differentiable[k],
                             whole ? Sharing::kReplicated : Sharing::kNone});
    }
    markAliases(input.wires);
    input.payload = input.wires.size();
    input.structure = batch.input_.structure;
  }
  const PipelineContext& pipeline = *batch.pipeline_;
  std::vector<TaskId> last_of(micro_batches.size());  // the micro-batch's task in the stage before
  for (const CellIndex cell : order_) {
    const TaskId task = graph_.add(pipeline.worker_of[cell.stage]);
    if (cell.stage != 0) graph_.require(task, last_of[cell.micro_batch]);
    last_of[cell.micro_batch] = task;
  }
  setTasks(graph_.size());
}

Cell::Input ForwardJob::inputOf(std::size_t micro_batch, std::size_t stage) {
  const PipelineContext& pipeline = *run_.pipeline_;
  Cell::Input input = std::move(next_[micro_batch]);
  DeviceCopier::wait(std::move(arriving_[micro_batch]));
  for (const std::size_t route : pipeline.incoming[stage]) {
    Skip& skip = skips_[route][micro_batch];
    DeviceCopier::wait(std::move(skip.arriving));
    input.wires.push_back(std::move(skip.wire));
  }
  if (stage == 0) {
    const at::NoGradGuard no_grad;
    for (Wire& wire : input.wires)
      wire.value = moved(wire.value, pipeline.devices[0]);
  }
  return input;
}

PendingCopyPtr ForwardJob::sendWires(std::vector<Wire>& wires, c10::Device to,
                                     CellIndex cell) const {
  if (!run_.pipeline_->crosses) return nullptr;
  std::vector<at::Tensor*> tensors;
  for (Wire& wire : wires)
    tensors.push_back(&wire.value);
  return send(tensors, to, cell);
}

void ForwardJob::perform(TaskId task) {
  const auto [i, j] = order_[task];
  const PipelineContext& pipeline = *run_.pipeline_;
  Cell::Input input = inputOf(i, j);
  Cell::Output output;
  {
    const Timeline::Span span(run_.pipeline_->timeline, j, i, EventKind::kForward, t_worker);
    output = run_.cell(i, j).run(*run_.setting_, j, i, std::move(input), run_.checkpointed(i),
                                 turnOf(task));
  }
  const auto& outgoing = pipeline.outgoing[j];
  for (const auto k : c10::irange(outgoing.size())) {
    Skip& skip = skips_[outgoing[k]][i];
    skip.wire = std::move(output.wires[output.payload + k]);
    skip.arriving =
        send({&skip.wire.value}, pipeline.devices[pipeline.routes[outgoing[k]].to], {i, j});
  }
  output.wires.resize(output.payload);
  if (j + 1 == run_.stages()) {
    outputs[i] = std::move(output);
    return;
  }
  arriving_[i] = sendWires(output.wires, pipeline.devices[j + 1], {i, j});
  next_[i] = {std::move(output.wires), output.payload, std::move(output.structure)};
}

// Adds a stage's gradients up as they come: in the parameters' accumulators where it may, so that
// a large gradient's memory serves the next one, and nothing is left to do after the stages.
class BackwardJob::StageSink final : public GradientSink {
 public:
  StageSink(BackwardJob& job, std::size_t stage, const torch::autograd::edge_list& boundary)
      : job_(job), stage_(stage), boundary_(boundary) {}
  bool take(const torch::autograd::Node* gate, at::Tensor& grad) override {
    const auto it = std::find_if(boundary_.begin(), boundary_.end(),
                                 [&](const auto& edge) { return edge.function.get() == gate; });
    if (it == boundary_.end()) return false;
    const auto k = static_cast<std::size_t>(it - boundary_.begin());
    torch::autograd::Node* const accumulator = job_.accumulators_[stage_][k];
    if (accumulator == nullptr) {
      job_.addUp(stage_, k, std::move(grad));
    } else {
      torch::autograd::variable_list one;
      one.push_back(std::move(grad));
      (*accumulator)(std::move(one));
    }
    return true;
  }

 private:
  BackwardJob& job_;
  const std::size_t stage_;
  const torch::autograd::edge_list& boundary_;
};

BackwardJob::BackwardJob(ForwardRun& batch, const Wanted& wanted, bool keep_graph)
    : PipelineJob(*batch.pipeline_),
      input_grads(batch.micro_batches_),
      sums(batch.stages()),
      wanted_of(batch.stages()),
      run_(batch),
      keep_graph_(keep_graph),
      wants_inputs_(batch.stages()),
      boundary_(batch.stages()),
      gates_again_(batch.stages()),
      accumulators_(batch.stages()),
      owned_(batch.stages()),
      arriving_(batch.micro_batches_),
      skip_grads_(batch.pipeline_->routes.size()),
      graph_(batch.pipeline_->workers) {
  for (std::vector<SkipGrad>& grads : skip_grads_)
    grads.resize(batch.micro_batches_);
  // What several stages share is summed by them apart, so that the order of additions is always the
  // same.
  std::vector<unsigned> stages_of(batch.parameters_.size());
  for (const auto& places : batch.parameters_of_)
    for (const std::size_t place : places)
      ++stages_of[place];
  bool before = std::find(wanted.inputs.begin(), wanted.inputs.end(), true) != wanted.inputs.end();
  for (const auto j : c10::irange(batch.stages())) {
    wants_inputs_[j] = before;
    const auto& places = batch.parameters_of_[j];
    for (const auto k : c10::irange(places.size())) {
      if (!wanted.parameters[places[k]]) continue;
      wanted_of[j].push_back(places[k]);
      boundary_[j].push_back(batch.setting_->boundary[j][k]);
      gates_again_[j].push_back(batch.setting_->gates_again[j][k]);
      accumulators_[j].push_back(stages_of[places[k]] == 1 ? wanted.accumulators[places[k]]
                                                           : nullptr);
      before = true;
    }
    sums[j].resize(wanted_of[j].size());
    owned_[j].assign(wanted_of[j].size(), false);
  }
  buildGraph();
}

void BackwardJob::buildGraph() {
  const PipelineContext& pipeline = *run_.pipeline_;
  std::vector<CellIndex> order = clockOrder(run_.micro_batches_, run_.stages());
  std::reverse(order.begin(), order.end());
  std::vector<std::optional<TaskId>> task_of(run_.cells_.size());
  const auto taskOf = [&](std::size_t i, std::size_t j) -> std::optional<TaskId>& {
    return task_of[i * run_.stages() + j];
  };
  for (const CellIndex index : order) {
    const auto [i, j] = index;
    Cell& cell = run_.cell(i, j);
    if (cell.state() == CellState::kDone) continue;
    if (!wants_inputs_[j] && boundary_[j].empty()) continue;
    if (cell.state() == CellState::kCheckpointed) {
      graph_.add(pipeline.worker_of[j]);
      steps_.push_back({index, true});
    }
    const TaskId task = graph_.add(pipeline.worker_of[j]);
    steps_.push_back({index, false});
    taskOf(i, j) = task;
    if (j + 1 < run_.stages() && taskOf(i, j + 1)) graph_.require(task, *taskOf(i, j + 1));
    for (const std::size_t route : pipeline.outgoing[j]) {
      const auto& consumer = taskOf(i, pipeline.routes[route].to);
      if (consumer) graph_.require(task, *consumer);
    }
  }
  setTasks(graph_.size());
}

void BackwardJob::perform(TaskId task) {
  const auto [index, recompute] = steps_[task];
  const Timeline::Span span(run_.pipeline_->timeline, index.stage, index.micro_batch,
                            recompute ? EventKind::kRecompute : EventKind::kBackward, t_worker);
  if (recompute) {
    run_.cell(index.micro_batch, index.stage).recompute(*run_.setting_, turnOf(task));
  } else {
    backward(index, turnOf(task));
  }
}

void BackwardJob::backward(CellIndex index, const RngTurn& turn) {
  const auto [i, j] = index;
  const PipelineContext& pipeline = *run_.pipeline_;
  Cell& cell = run_.cell(i, j);
  const auto& outgoing = pipeline.outgoing[j];
  DeviceCopier::wait(std::move(arriving_[i]));
  cell.output_grads.resize(cell.outputs() - outgoing.size());
  for (const std::size_t route : outgoing) {
    SkipGrad& grad = skip_grads_[route][i];
    DeviceCopier::wait(std::move(grad.arriving));
    cell.output_grads.push_back(std::move(grad.value));
  }
  const auto& boundary = cell.checkpointed() ? gates_again_[j] : boundary_[j];
  Cell::Gradients found;
  {
    StageSink sink(*this, j, boundary);
    const GradientSinkGuard guard(&sink);
    found = cell.backward(*run_.setting_, wants_inputs_[j], boundary, keep_graph_, turn);
  }
  for (const auto k : c10::irange(found.parameters.size()))
    addUp(j, k, std::move(found.parameters[k]));

  const auto& incoming = pipeline.incoming[j];
  const std::size_t payload = found.inputs.size() - incoming.size();
  for (const auto k : c10::irange(incoming.size())) {
    SkipGrad& grad = skip_grads_[incoming[k]][i];
    grad.value = std::move(found.inputs[payload + k]);
    grad.arriving = send({&grad.value}, pipeline.devices[pipeline.routes[incoming[k]].from], index);
  }
  found.inputs.resize(payload);
  if (j == 0) {
    input_grads[i] = std::move(found.inputs);
    return;
  }
  if (pipeline.crosses) {
    std::vector<at::Tensor*> leaving;
    for (at::Tensor& grad : found.inputs)
      leaving.push_back(&grad);
    arriving_[i] = send(leaving, pipeline.devices[j - 1], index);
  }
  run_.cell(i, j - 1).output_grads = std::move(found.inputs);
}

void BackwardJob::addUp(std::size_t stage, std::size_t k, at::Tensor grad) {
  if (!grad.defined()) return;
  const at::NoGradGuard no_grad;
  at::Tensor& sum = sums[stage][k];
  if (!sum.defined()) {
    owned_[stage][k] = isNobodyElses(grad);
    sum = std::move(grad);
  } else if (owned_[stage][k] && (!sum.is_sparse() || grad.is_sparse())) {
    sum.add_(grad);
  } else {
    sum = sumOf(sum, grad);
    owned_[stage][k] = true;
  }
}

}  // namespace weft::pipe
