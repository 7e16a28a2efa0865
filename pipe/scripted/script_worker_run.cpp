#include "pipe/scripted/script_worker_run.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>

#include "pipe/schedule/timeline.h"

namespace weft::pipe {

namespace {

using Kind = WorkerTask::Kind;

// Without an arrival for so long, the driver is asked whether it is there.
constexpr std::chrono::milliseconds kLook{1000};

std::shared_ptr<Arrivals> mustFindArrivals(const std::string& pipeline) {
  auto found = findArrivals(pipeline);
  if (found == nullptr) throw Abandoned("the Pipe was closed");
  return found;
}

[[noreturn]] void fail(const WorkerTask& task, const std::string& worker, const char* why) {
  throw std::runtime_error("stage " + std::to_string(task.stage) + " of the Pipe, on worker '" +
                           worker + "', failed in the " + nameOf(task.kind) + " of micro-batch " +
                           std::to_string(task.micro_batch) + ": " + why);
}

Tensors buffersOf(const torch::jit::Module& module) {
  Tensors buffers;
  for (const at::Tensor& buffer : module.buffers())
    buffers.push_back(buffer);
  return buffers;
}

// Each step gives a worker other than the driver a copy of the loss.
void checkUnchanged(const torch::jit::Module& loss, const std::vector<Version>& buffers) {
  const bool same = std::ranges::equal(
      buffers, buffersOf(loss),
      [](const Version& was, const at::Tensor& is) { return was.first.is_same(is); });
  TORCH_CHECK(
      same && !haveChanged(buffers),
      "the loss changes its buffer, and each step gives its worker a new copy, so the change "
      "would be lost: let the last layer keep it");
}

}  // namespace

ScriptWorkerRun::ScriptWorkerRun(WorkerPart part, WorkerJob job, PythonValues* python)
    : part_(std::move(part)),
      job_(std::move(job)),
      python_(python),
      last_(static_cast<std::int64_t>(part_.places.size()) - 1),
      arrivals_(mustFindArrivals(part_.pipeline)),
      deliveries_(part_.pipeline),
      splits_(part_.places.size()),
      number_(nextMiniBatchNumber()),
      loss_(at::zeros({})) {
  checkJob(part_, job_);
  for (const auto& [number, layers] : part_.stages)
    stages_.try_emplace(number, layers, python_);
  for (const WorkerTask& task : job_.tasks) {
    if (task.kind == Kind::kWeights) splits_[static_cast<std::size_t>(task.stage)] = true;
    auto record = std::make_shared<TaskRecord>();
    record->task = task;
    record->mini_batch = job_.mini_batch;
    records_.push_back(std::move(record));
  }
}

void ScriptWorkerRun::give(std::int64_t micro_batch, StageArguments arguments) {
  own_inputs_.insert_or_assign({0, micro_batch}, std::move(arguments));
}

void ScriptWorkerRun::run() {
  const at::AutoGradMode grad_mode(job_.trains);
  for (const auto& record : records_)
    runTask(*record);
  try {
    deliveries_.wait();
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("worker '" + part_.worker + "': " + error.what());
  }
}

// What a wait throws is thrown as it is.
void ScriptWorkerRun::runTask(TaskRecord& record) {
  const WorkerTask& task = record.task;
  record.created = monotonicNanos();
  record.started = record.created.load();
  std::optional<Parcel> arrived = take(task, record);
  try {
    switch (task.kind) {
      case Kind::kForward:
        return forward(task, std::move(arrived), record);
      case Kind::kBackward:
        return backward(task, std::move(arrived), record);
      case Kind::kWeights:
        stages_.at(task.stage).weights(static_cast<std::size_t>(task.micro_batch));
        record.ended = monotonicNanos();
    }
  } catch (const c10::Error& error) {
    fail(task, part_.worker, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(task, part_.worker, error.what());
  }
}

std::optional<Parcel> ScriptWorkerRun::take(const WorkerTask& task, TaskRecord& record) {
  const Place place{task.stage, task.micro_batch};
  const bool is_forward = task.kind == Kind::kForward;
  if (is_forward ? own_inputs_.contains(place) : own_gradients_.contains(place))
    return std::nullopt;
  if (task.kind == Kind::kWeights || (!is_forward && task.stage == last_)) return std::nullopt;
  const auto what = is_forward ? Sent::kInput : Sent::kGradients;
  const ArrivalKey key{job_.mini_batch, what, task.stage, task.micro_batch};
  record.started = 0;
  std::optional<Parcel> parcel;
  try {
    while (!(parcel = arrivals_->take(key, kLook))) {
      if (part_.worker != part_.driver) ping(part_.driver);
    }
  } catch (const c10::Error& error) {
    throw Abandoned(error.what_without_backtrace());
  } catch (const std::runtime_error& error) {
    throw Abandoned(error.what());
  }
  record.started = monotonicNanos();
  return parcel;
}

void ScriptWorkerRun::forward(const WorkerTask& task, std::optional<Parcel> input,
                              TaskRecord& record) {
  const auto number = static_cast<std::size_t>(task.micro_batch);
  ScriptWorkerStage& stage = stages_.at(task.stage);
  // What comes from a stage of this worker is this one's to change, from now on.
  if (!input) checkSent({task.stage - 1, task.micro_batch}, /*keep=*/false);
  StageArguments arguments =
      input ? unpack(std::move(*input), stage.schema(), python_)
            : std::move(own_inputs_.extract({task.stage, task.micro_batch}).mapped());
  StageContext context;
  context.stage = static_cast<std::size_t>(task.stage);
  context.micro_batch = number;
  context.micro_batches = job_.recompute.size();
  context.mini_batch = number_;
  if (job_.trains && task.stage == last_) {
    const bool copied = part_.worker != part_.driver;
    const auto buffers = withVersions(copied ? buffersOf(*job_.criterion) : Tensors());
    loss_ = loss_ + stage.loss(context, std::move(arguments), job_.recompute[number],
                               *job_.criterion, job_.targets[number], job_.weights[number]);
    if (copied) checkUnchanged(*job_.criterion, buffers);
    record.ended = monotonicNanos();
    return;
  }
  const at::IValue output = stage.forward(context, std::move(arguments), job_.recompute[number]);
  record.ended = monotonicNanos();
  if (const auto last = sent_last_.find(task.stage); last != sent_last_.end())
    checkSent({task.stage, last->second}, /*keep=*/job_.trains);
  giveOutput(task, output);
}

void ScriptWorkerRun::backward(const WorkerTask& task, std::optional<Parcel> arrived,
                               TaskRecord& record) {
  const auto number = static_cast<std::size_t>(task.micro_batch);
  std::optional<Tensors> gradients;  // none: of the loss
  if (arrived) {
    gradients = unpackGradients(std::move(*arrived), python_);
  } else if (task.stage != last_) {
    gradients = std::move(own_gradients_.extract({task.stage, task.micro_batch}).mapped());
  }
  checkSent({task.stage, task.micro_batch}, /*keep=*/false);
  ScriptWorkerStage& stage = stages_.at(task.stage);
  const bool splits = splits_[static_cast<std::size_t>(task.stage)];
  Tensors found =
      splits ? stage.inputGradients(number, gradients) : stage.backward(number, gradients);
  record.ended = monotonicNanos();
  giveGradients(task, std::move(found));
}

void ScriptWorkerRun::giveOutput(const WorkerTask& task, const at::IValue& output) {
  if (task.stage == last_) {
    outputs_.insert_or_assign(task.micro_batch, output);
    return;
  }
  sent_.insert_or_assign({task.stage, task.micro_batch}, withVersions(tensorsOf({output})));
  sent_last_[task.stage] = task.micro_batch;
  const std::string& next = workerOf(task.stage + 1, task.micro_batch);
  if (next == part_.worker) {
    own_inputs_[{task.stage + 1, task.micro_batch}] = {asArguments(output)};
    return;
  }
  const ArrivalKey key{job_.mini_batch, Sent::kInput, task.stage + 1, task.micro_batch};
  deliveries_.send(next, key, pack(output, python_));
}

void ScriptWorkerRun::giveGradients(const WorkerTask& task, Tensors gradients) {
  if (task.stage == 0) {
    first_gradients_.insert_or_assign(task.micro_batch, std::move(gradients));
    return;
  }
  const std::string& before = workerOf(task.stage - 1, task.micro_batch);
  if (before == part_.worker) {
    own_gradients_[{task.stage - 1, task.micro_batch}] = std::move(gradients);
    return;
  }
  const ArrivalKey key{job_.mini_batch, Sent::kGradients, task.stage - 1, task.micro_batch};
  deliveries_.send(before, key, packGradients(gradients));
}

// What a stage keeps, gives and then changes may be read after the change, or before it. Looked for
// after the stage's next forward, and before the micro-batch's backward.
void ScriptWorkerRun::checkSent(Place place, bool keep) {
  const auto sent = sent_.find(place);
  if (sent == sent_.end()) return;
  TORCH_CHECK(!haveChanged(sent->second),
              "the stage changes in place what it has given to another stage: let it give a clone");
  if (!keep) sent_.erase(sent);
}

at::IValue ScriptWorkerRun::output() const {
  if (outputs_.empty()) return {};
  Values parts;
  for (const auto& [number, output] : outputs_)
    parts.push_back(output);
  return joined(parts);
}

const std::string& ScriptWorkerRun::workerOf(std::int64_t stage, std::int64_t micro_batch) const {
  const auto& workers = part_.places[static_cast<std::size_t>(stage)];
  return workers[static_cast<std::size_t>(micro_batch) % workers.size()];
}

}  // namespace weft::pipe
