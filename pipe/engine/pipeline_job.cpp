#include "pipe/engine/pipeline_job.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

namespace weft::pipe {

namespace {
// For the timeline: 0 is the caller's thread.
thread_local std::size_t t_worker = 0;
}  // namespace

PipelineJob::PipelineJob(PipelineContext& pipeline, std::size_t micro_batches, Schedule schedule,
                         Direction direction, Perform perform)
    : pipeline_(pipeline),
      schedule_(std::move(schedule)),
      forward_(direction == Direction::kForward),
      perform_(std::move(perform)),
      payloads_(micro_batches * (pipeline.stages.size() + 1)),
      skips_(micro_batches * pipeline.routes.size()),
      outside_(currentRngScope()) {
  for (const c10::Device device : pipeline.devices) {
    if (isAccelerator(device))
      streams_.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
}

Activations PipelineJob::receive(CellIndex cell) {
  Payload& payload = this->payload(cell.micro_batch, cell.stage + (forward_ ? 0 : 1));
  Activations content = std::move(payload.content);
  DeviceCopier::wait(std::move(payload.copy));
  for (const std::size_t route : (forward_ ? pipeline_.incoming : pipeline_.outgoing)[cell.stage]) {
    Skip& skip = this->skip(route, cell.micro_batch);
    DeviceCopier::wait(std::move(skip.copy));
    content.values.push_back(std::move(skip.content));
  }
  return content;
}

void PipelineJob::send(CellIndex cell, Activations given) {
  std::size_t next = given.payload_size;
  for (const std::size_t route : (forward_ ? pipeline_.outgoing : pipeline_.incoming)[cell.stage]) {
    const SkipRoute& ends = pipeline_.routes[route];
    Skip& skip = this->skip(route, cell.micro_batch);
    skip.content = std::move(given.values[next++]);
    skip.copy =
        copy({&skip.content.value}, pipeline_.devices[forward_ ? ends.to : ends.from], cell);
  }
  given.values.resize(given.payload_size);
  const std::size_t place = cell.stage + (forward_ ? 1 : 0);
  Payload& payload = this->payload(cell.micro_batch, place);
  payload.content = std::move(given);
  if (!pipeline_.crosses || place == 0 || place == pipeline_.stages.size()) return;
  std::vector<at::Tensor*> tensors;
  for (Activation& value : payload.content.values)
    tensors.push_back(&value.value);
  payload.copy = copy(tensors, pipeline_.devices[forward_ ? place : place - 1], cell);
}

// Begins to copy tensors that a cell made to another stage's device; see DeviceCopier.
PendingCopyPtr PipelineJob::copy(const std::vector<at::Tensor*>& tensors, c10::Device to,
                                 CellIndex from) const {
  const bool away = std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor* tensor) {
    return tensor->defined() && tensor->device() != to;
  });
  if (!away) return nullptr;
  const Timeline::Span span = record(from, EventKind::kCopy);
  // One tensor here is one tensor there: each is copied once.
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
  PendingCopyPtr pending = pipeline_.copier().send(once, to);
  for (const auto& [tensor, first] : again)
    *tensor = *first;
  return pending;
}

Timeline::Span PipelineJob::record(CellIndex cell, EventKind kind) const {
  return {pipeline_.timeline, cell.stage, cell.micro_batch, kind, t_worker};
}

void PipelineJob::run(TaskId task, TaskOrder* order) {
  perform_(*this, schedule_.task(task), {order, task, outside_, &pipeline_.executor->hooks()});
}

void PipelineJob::worker(std::size_t worker, const std::function<void()>& share) {
  const at::ThreadLocalStateGuard guard(thread_state_);
  for (const c10::Stream stream : streams_)
    c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
  t_worker = worker + 1;
  at::init_num_threads();  // torch.set_num_threads counts for this thread as well
  share();
}

}  // namespace weft::pipe
