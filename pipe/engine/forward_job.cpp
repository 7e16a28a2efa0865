#include "pipe/engine/forward_job.h"

#include <c10/util/irange.h>

#include <utility>

namespace weft::pipe {

ForwardJob::ForwardJob(MiniBatchContext& context, CellGrid& cells, std::vector<Activations> inputs,
                       std::vector<bool> checkpointed)
    : PipelineJob(context.pipeline,
                  gpipeForward(context.micro_batches, context.pipeline.worker_of)),
      cells_(cells),
      checkpointed_(std::move(checkpointed)),
      next_(std::move(inputs)),
      copies_(context.micro_batches),
      skips_(pipeline_.routes.size()),
      outputs_(context.micro_batches) {
  for (std::vector<Skip>& skips : skips_)
    skips.resize(context.micro_batches);
}

Activations ForwardJob::inputOf(CellIndex cell) {
  Activations input = std::move(next_[cell.micro_batch]);
  DeviceCopier::wait(std::move(copies_[cell.micro_batch]));
  for (const std::size_t route : pipeline_.incoming[cell.stage]) {
    Skip& skip = skips_[route][cell.micro_batch];
    DeviceCopier::wait(std::move(skip.copy));
    input.values.push_back(std::move(skip.activation));
  }
  if (cell.stage == 0) {
    const at::NoGradGuard no_grad;
    for (Activation& activation : input.values)
      activation.value = moved(activation.value, pipeline_.devices[0]);
  }
  return input;
}

void ForwardJob::sendSkips(CellIndex cell, Activations& output) {
  const auto& outgoing = pipeline_.outgoing[cell.stage];
  for (const auto k : c10::irange(outgoing.size())) {
    Skip& skip = skips_[outgoing[k]][cell.micro_batch];
    skip.activation = std::move(output.values[output.payload + k]);
    const std::size_t to = pipeline_.consumers[cell.stage][k];
    skip.copy = send({&skip.activation.value}, pipeline_.devices[to], cell);
  }
  output.values.resize(output.payload);
}

PendingCopyPtr ForwardJob::sendToNextStage(CellIndex cell, Activations& output) const {
  if (!pipeline_.crosses) return nullptr;
  std::vector<at::Tensor*> tensors;
  for (Activation& activation : output.values)
    tensors.push_back(&activation.value);
  return send(tensors, pipeline_.devices[cell.stage + 1], cell);
}

void ForwardJob::perform(const Task& task, const RngTurn& turn) {
  const CellIndex cell = task.cell;
  Activations input = inputOf(cell);
  Activations output;
  {
    const Timeline::Span span = record(cell, EventKind::kForward);
    output = cells_.at(cell).forward(std::move(input), checkpointed_[cell.micro_batch], turn);
  }
  sendSkips(cell, output);
  if (cell.stage + 1 == pipeline_.stages.size()) {
    outputs_[cell.micro_batch] = std::move(output);
    return;
  }
  copies_[cell.micro_batch] = sendToNextStage(cell, output);
  next_[cell.micro_batch] = std::move(output);
}

}  // namespace weft::pipe
