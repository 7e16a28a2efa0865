#include "pipe/engine/pipeline_job.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace weft::pipe {

namespace {
// For the timeline: 0 is the caller's thread.
thread_local std::size_t t_worker = 0;
}  // namespace

PipelineJob::PipelineJob(PipelineContext& pipeline, Schedule schedule)
    : pipeline_(pipeline),
      schedule_(std::move(schedule)),
      copier_(pipeline.copier()),
      outside_(currentRngScope()),
      order_(schedule_.size()) {
  for (const c10::Device device : pipeline.devices) {
    if (isAccelerator(device))
      streams_.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
}

void PipelineJob::run(TaskId task) {
  struct AtEnd {
    TaskOrder& order;
    TaskId task;
    ~AtEnd() { order.end(task); }
  } const at_end{order_, task};
  perform(schedule_.task(task),
          {&order_, task, outside_, &pipeline_.executor->hooks().while_waiting});
}

void PipelineJob::worker(std::size_t worker, const std::function<void()>& share) {
  const at::ThreadLocalStateGuard guard(thread_state_);
  for (const c10::Stream stream : streams_)
    c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
  t_worker = worker + 1;
  at::init_num_threads();  // torch.set_num_threads counts for this thread as well
  share();
}

Timeline::Span PipelineJob::record(CellIndex cell, EventKind kind) const {
  return {pipeline_.timeline, cell.stage, cell.micro_batch, kind, t_worker};
}

PendingCopyPtr PipelineJob::send(const std::vector<at::Tensor*>& tensors, c10::Device to,
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

}  // namespace weft::pipe
