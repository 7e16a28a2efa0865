#include "pipe/cell/micro_batch_cell.h"

#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <string>
#include <utility>

#include "pipe/cell/gradient_boundary.h"
#include "pipe/cell/graph_run.h"
#include "pipe/cell/hidden_tensors.h"
#include "pipe/data/memory.h"

namespace weft::pipe {

namespace autograd = torch::autograd;

namespace {

// Names the run in profiles.
void label(at::RecordFunction& record, const char* kind, std::size_t stage,
           std::size_t micro_batch) {
  if (!record.isActive()) return;
  record.before("weft::pipe." + std::string(kind) + std::to_string(stage) + ".mb" +
                std::to_string(micro_batch));
}

// As torch.distributed.pipeline.sync named it, for tools that read its profiles.
void labelAsUpstream(at::RecordFunction& record, std::size_t stage, std::size_t micro_batch) {
  if (!record.isActive()) return;
  record.before("chunk" + std::to_string(micro_batch) + "-part" + std::to_string(stage));
}

bool anyDifferentiable(const std::vector<Activation>& values) {
  return std::any_of(values.begin(), values.end(),
                     [](const Activation& value) { return value.differentiable; });
}

std::vector<at::Tensor> valuesOf(const Activations& output) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(output.values.size());
  for (const Activation& activation : output.values)
    tensors.push_back(activation.value);
  return tensors;
}

}  // namespace

Activations MicroBatchCell::forward(Activations input, bool checkpoint, const RngTurn& turn) {
  const MiniBatchContext& context = *context_;
  input_.set(std::move(input));
  const bool wanted =
      context.grad && (!context.parameters.of_stage[stage_].empty() || input_.anyDifferentiable());
  checkpointed_ = checkpoint && wanted;

  RngScope scope(turn, context.pipeline.devices[stage_],
                 context.grad ? RngScope::Purpose::kRecord : RngScope::Purpose::kDraw, nullptr,
                 traits().forwardUsesRng(context.training));
  Activations output = perform(checkpointed_ ? CellPass::kCheckpoint : CellPass::kGraph);
  if (context.grad) sample_ = OutputSample(valuesOf(output));
  drew_ = scope.touched();
  traits().learnForwardRng(context.training, drew_);
  if (RngStates states = scope.take(); !states.empty())
    rng_ = std::make_unique<const RngStates>(std::move(states));

  const bool differentiable = anyDifferentiable(output.values);
  TORCH_CHECK(
      !differentiable || wanted, "stage ", stage_,
      " gave an output that requires a gradient, but neither its inputs nor its registered "
      "parameters do: a tensor used inside it must be a registered parameter, or an input.");
  // Only another run can tell whether an object hides a graph.
  const bool again = checkpointed_ && (differentiable || mayHideGraph(output.structure.get()));
  if (again) {
    state_ = CellState::kCheckpointed;
    input_.noteVersions();
  } else if (differentiable) {
    state_ = CellState::kGraph;
    input_.dropValues();
  } else {
    drop();
  }
  return output;
}

void MicroBatchCell::recompute(const RngTurn& turn) {
  TORCH_INTERNAL_ASSERT(state_ == CellState::kCheckpointed);
  input_.checkVersions();
  const c10::InferenceMode no_inference(false);  // the backward may be in it, and it has no graphs
  const ThreadStateGuard thread_state(context_->thread_state);
  const at::AutoGradMode grad(true);
  const RngScope scope(turn, context_->pipeline.devices[stage_], RngScope::Purpose::kRepeat,
                       rng_.get(), drew_);
  const Activations output = perform(CellPass::kRecompute);
  scope.checkRepeated(stage_);
  sample_.checkRepeated(valuesOf(output), stage_);
  state_ = CellState::kGraph;
}

Activations MicroBatchCell::perform(CellPass pass) {
  const MiniBatchContext& context = *context_;
  const Activations& input = input_.activations();
  const std::vector<at::Tensor> given = input_.alias(pass);
  const std::vector<std::uint32_t> versions = versionsOf(given);
  SkipPort skips(context.pipeline.routes.size());
  Batch result;
  {
    const at::AutoGradMode grad(pass != CellPass::kCheckpoint && at::GradMode::is_enabled());
    const NoAutocastCache no_cache;
    result = callStage(pass, given, skips);
  }
  // Without gradients, and on one device, stages may share memory as they do without a Pipe.
  if (context.grad || context.pipeline.crosses) refuseSharedWrites(input, given, versions, stage_);
  if (pass != CellPass::kRecompute) input_.learnFrom(pass, given, versions);
  TORCH_CHECK_TYPE(!result.tensors.empty(), "stage ", stage_,
                   " returned no tensor; a partition must return at least one");

  Activations output = outputsOf(pass, std::move(result), skips);
  if (pass == CellPass::kCheckpoint) {
    assumed_graphless_ = traits().assumeGraphs(input, output);
  } else if (context.grad && context.training && at::GradMode::is_enabled()) {
    traits().learnGraphs(input, output, assumed_graphless_, stage_);
  }
  if (pass != CellPass::kRecompute) {
    static const std::vector<at::Tensor> none;
    markSharing(output, input, given, context.grad ? context.tensors[stage_]->tensors : none,
                stage_, context.pipeline.consumers[stage_]);
  }
  if (pass != CellPass::kCheckpoint && context.grad) {
    refuseHiddenGraphs(output.structure.get(), stage_);
    refuseUnregisteredLeaves(output_edges_, input_.node(), parameterEnds(),
                             context.parameters.of_stage[stage_], stage_);
  }
  return output;
}

Batch MicroBatchCell::callStage(CellPass pass, const std::vector<at::Tensor>& inputs,
                                SkipPort& skips) const {
  MiniBatchContext& context = *context_;
  const auto& incoming = context.pipeline.incoming[stage_];
  for (const auto k : c10::irange(incoming.size()))
    skips.put(incoming[k], inputs[input_.payloadSize() + k]);
  const bool again = pass == CellPass::kRecompute;
  const StageContext stage_context{
      stage_, micro_batch_, context.micro_batches, pass == CellPass::kCheckpoint,
      again,  &skips,       context.number,        context.in_backward};
  const StageContextGuard guard(stage_context);
  // What the stage makes on "cuda", it makes on its own device, whichever thread runs it.
  const c10::OptionalDeviceGuard device(ifAccelerator(context.pipeline.devices[stage_]));
  const auto payload_end = inputs.begin() + static_cast<std::ptrdiff_t>(input_.payloadSize());
  const Batch batch{{inputs.begin(), payload_end}, input_.activations().structure};

  at::RecordFunction record(at::RecordScope::USER_SCOPE);
  label(record, again ? "R" : "F", stage_, micro_batch_);
  at::RecordFunction upstreams(at::RecordScope::USER_SCOPE);
  labelAsUpstream(upstreams, stage_, micro_batch_);
  Stage& stage = *context.pipeline.stages[stage_];
  const std::lock_guard alone(context.pipeline.in_use[stage_]);
  const StageTimes::Span time(context.times, stage_,
                              again ? TaskKind::kRecompute : TaskKind::kForward);
  return again ? stage.forwardAgain(batch, *context.tensors[stage_]) : stage.forward(batch);
}

// Takes the outputs off their graph, whose edges it keeps.
Activations MicroBatchCell::outputsOf(CellPass pass, Batch result, SkipPort& skips) {
  Activations output;
  output.payload_size = result.tensors.size();
  output.structure = std::move(result.structure);
  for (const std::size_t route : context_->pipeline.outgoing[stage_])
    result.tensors.push_back(skips.take(route).value_or(at::Tensor()));
  if (pass != CellPass::kRecompute) outputs_ = result.tensors.size();
  TORCH_CHECK(outputs_ == result.tensors.size(), "stage ", stage_, " of a Pipe returned ",
              output.payload_size, output.payload_size == 1 ? " tensor" : " tensors",
              " when it ran again for the backward, and another number before: return the "
              "same in both, also where is_recomputing() is true");
  output_edges_.clear();
  for (const auto k : c10::irange(result.tensors.size())) {
    const at::Tensor& tensor = result.tensors[k];
    // Without a graph a view of an input says that it requires a gradient, as that does, and torch
    // refuses to tell the history of one that was changed in place.
    const bool has_graph =
        pass != CellPass::kCheckpoint && tensor.defined() && tensor.requires_grad();
    output_edges_.push_back(has_graph ? autograd::impl::gradient_edge(tensor) : autograd::Edge());
    const bool differentiable =
        pass == CellPass::kCheckpoint ? mayHaveGradient(tensor) : has_graph && context_->grad;
    const std::size_t first = firstSame(result.tensors, k);
    at::Tensor value;
    if (tensor.defined()) value = first < k ? output.values[first].value : tensor.detach();
    output.values.push_back({std::move(value), differentiable});
  }
  return output;
}

Activations MicroBatchCell::backward(const Activations& grads, GradientAccumulator& sums,
                                     bool keep_graph, const RngTurn& turn) {
  TORCH_INTERNAL_ASSERT(state_ == CellState::kGraph);
  autograd::edge_list roots;
  autograd::variable_list root_grads;
  // A cell that did not run passes no payload, only its skips: the gradients are then those of the
  // last outputs.
  const std::size_t missing = output_edges_.size() - grads.values.size();
  for (const auto k : c10::irange(grads.values.size())) {
    const autograd::Edge& edge = output_edges_[missing + k];
    if (!grads.values[k].value.defined() || !edge.is_valid()) continue;
    roots.push_back(edge);
    root_grads.push_back(grads.values[k].value);
  }
  const bool want_inputs = sums.wantsInputs(stage_);
  autograd::edge_list ends;
  for (const std::int64_t slot : input_.slots()) {
    if (want_inputs && slot >= 0)
      ends.emplace_back(input_.node(), static_cast<std::uint32_t>(slot));
  }
  sums.appendEnds(stage_, parameterEnds(), ends);

  Activations result;
  result.values.resize(input_.slots().size());
  result.payload_size = input_.payloadSize();
  autograd::variable_list found;
  if (!roots.empty() && !ends.empty()) {
    at::RecordFunction record(at::RecordScope::USER_SCOPE);
    label(record, "B", stage_, micro_batch_);
    const RngScope scope(turn, context_->pipeline.devices[stage_], RngScope::Purpose::kDraw,
                         nullptr, traits().backwardUsesRng());
    const GradientSink sink = [&](const autograd::Node* end, at::Tensor& grad) {
      return sums.addAt(stage_, parameterEnds(), end, grad);
    };
    const GradientSinkGuard guard(sink);
    {
      const StageTimes::Span time(context_->times, stage_, TaskKind::kBackward);
      found = runGraph(roots, root_grads, /*keep_graph=*/keep_graph && !checkpointed_,
                       /*create_graph=*/false, ends);
    }
    traits().learnBackwardRng(scope.touched());
  }
  if (!keep_graph) {
    drop();
    rng_.reset();
    sample_ = {};
  } else {
    forgetRecomputation();
  }
  if (found.empty()) return result;
  auto next = found.begin();
  for (const auto k : c10::irange(input_.slots().size())) {
    if (want_inputs && input_.slots()[k] >= 0) result.values[k].value = std::move(*next++);
  }
  sums.add(stage_, next);
  return result;
}

void MicroBatchCell::forgetRecomputation() {
  if (!checkpointed_ || state_ != CellState::kGraph) return;
  output_edges_.clear();
  input_.dropNode();
  state_ = CellState::kCheckpointed;
}

void MicroBatchCell::drop() {
  input_.drop();
  output_edges_.clear();
  state_ = CellState::kDone;
}

}  // namespace weft::pipe
