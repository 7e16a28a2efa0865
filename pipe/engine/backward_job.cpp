#include "pipe/engine/backward_job.h"

#include <c10/util/irange.h>

#include <utility>

namespace weft::pipe {

namespace {

Schedule scheduleOf(const MiniBatchContext& context, const CellGrid& cells,
                    const GradientAccumulator& accumulator) {
  const PipelineContext& pipeline = context.pipeline;
  return gpipeBackward(
      context.micro_batches, pipeline.worker_of, pipeline.consumers, [&](CellIndex cell) {
        const CellState state = cells.at(cell).state();
        if (state == CellState::kDone || !accumulator.wantsAnything(cell.stage))
          return BackwardWork::kNone;
        return state == CellState::kCheckpointed ? BackwardWork::kRecomputeAndBackward
                                                 : BackwardWork::kBackward;
      });
}

}  // namespace

BackwardJob::BackwardJob(MiniBatchContext& context, CellGrid& cells,
                         GradientAccumulator& accumulator,
                         std::vector<std::vector<at::Tensor>> output_grads, bool keep_graph)
    : PipelineJob(context.pipeline, scheduleOf(context, cells, accumulator)),
      cells_(cells),
      accumulator_(accumulator),
      keep_graph_(keep_graph),
      payload_grads_(context.micro_batches * pipeline_.stages.size()),
      skip_grads_(pipeline_.routes.size()),
      input_grads_(context.micro_batches) {
  for (std::vector<SkipGrad>& grads : skip_grads_)
    grads.resize(context.micro_batches);
  for (const auto j : c10::irange(pipeline_.stages.size())) {
    boundary_.push_back(accumulator.wantedEdges(j, context.boundary[j]));
    recompute_boundary_.push_back(accumulator.wantedEdges(j, context.recompute_boundary[j]));
  }
  for (const auto i : c10::irange(context.micro_batches))
    payloadGrads({i, pipeline_.stages.size() - 1}).values = std::move(output_grads[i]);
}

void BackwardJob::perform(const Task& task, const RngTurn& turn) {
  const bool recompute = task.kind == TaskKind::kRecompute;
  const Timeline::Span span =
      record(task.cell, recompute ? EventKind::kRecompute : EventKind::kBackward);
  if (recompute) {
    cells_.at(task.cell).recompute(turn);
  } else {
    backward(task.cell, turn);
  }
}

void BackwardJob::backward(CellIndex cell, const RngTurn& turn) {
  MicroBatchCell& graph = cells_.at(cell);
  const std::vector<at::Tensor> grads = outputGradsOf(cell);
  const auto& boundary = (graph.checkpointed() ? recompute_boundary_ : boundary_)[cell.stage];
  MicroBatchCell::Gradients found;
  {
    GradientAccumulator::StageSink sink(accumulator_, cell.stage, boundary);
    const GradientSinkGuard guard(&sink);
    found =
        graph.backward(grads, accumulator_.wantsInputs(cell.stage), boundary, keep_graph_, turn);
  }
  for (const auto k : c10::irange(found.parameters.size()))
    accumulator_.add(cell.stage, k, std::move(found.parameters[k]));
  sendSkipGrads(cell, found.inputs);
  sendToPreviousStage(cell, std::move(found.inputs));
}

std::vector<at::Tensor> BackwardJob::outputGradsOf(CellIndex cell) {
  const auto& outgoing = pipeline_.outgoing[cell.stage];
  PayloadGrads& payload = payloadGrads(cell);
  DeviceCopier::wait(std::move(payload.copy));
  std::vector<at::Tensor> grads = std::move(payload.values);
  grads.resize(cells_.at(cell).outputs() - outgoing.size());  // none of a stage that did not run
  for (const std::size_t route : outgoing) {
    SkipGrad& grad = skip_grads_[route][cell.micro_batch];
    DeviceCopier::wait(std::move(grad.copy));
    grads.push_back(std::move(grad.value));
  }
  return grads;
}

// Leaves the payload's gradients in `input_grads`.
void BackwardJob::sendSkipGrads(CellIndex cell, std::vector<at::Tensor>& input_grads) {
  const auto& incoming = pipeline_.incoming[cell.stage];
  const std::size_t payload = input_grads.size() - incoming.size();
  for (const auto k : c10::irange(incoming.size())) {
    SkipGrad& grad = skip_grads_[incoming[k]][cell.micro_batch];
    grad.value = std::move(input_grads[payload + k]);
    const std::size_t to = pipeline_.routes[incoming[k]].from;
    grad.copy = send({&grad.value}, pipeline_.devices[to], cell);
  }
  input_grads.resize(payload);
}

void BackwardJob::sendToPreviousStage(CellIndex cell, std::vector<at::Tensor> input_grads) {
  if (cell.stage == 0) {
    input_grads_[cell.micro_batch] = std::move(input_grads);
    return;
  }
  PayloadGrads& payload = payloadGrads({cell.micro_batch, cell.stage - 1});
  payload.values = std::move(input_grads);
  if (!pipeline_.crosses) return;
  std::vector<at::Tensor*> tensors;
  for (at::Tensor& grad : payload.values)
    tensors.push_back(&grad);
  payload.copy = send(tensors, pipeline_.devices[cell.stage - 1], cell);
}

}  // namespace weft::pipe
