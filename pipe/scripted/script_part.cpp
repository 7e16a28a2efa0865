#include "pipe/scripted/script_part.h"

#include <c10/util/Exception.h>

#include <optional>
#include <utility>

namespace weft::pipe {

ScriptPart::ScriptPart(WorkerPart part, const std::map<std::int64_t, ScriptLayers>& stages)
    : part_(std::move(part)), arrivals_(openArrivals(part_.pipeline)) {
  for (const auto& [number, layers] : stages) {
    for (const ScriptLayer& layer : layers) {
      part_.stages[number].push_back(layer.module);
      layers_.push_back(layer);
    }
  }
  makeOptimizer();
}

ScriptPart::~ScriptPart() {
  close();
  if (runner_.joinable()) runner_.join();
}

void ScriptPart::makeOptimizer() {
  optimizer_ = std::make_unique<ScriptOptimizer>(parametersOf(layers_));
}

void ScriptPart::run(WorkerJob job, Ended ended) {
  // One may have missed that the driver gave it up, while neither reached the other.
  arrivals_->end(job.mini_batch - 1, "the driver has begun another mini-batch");
  const std::lock_guard lock(runner_mutex_);
  if (runner_.joinable()) runner_.join();
  runner_ = std::thread([this, job = std::move(job), ended = std::move(ended)]() mutable {
    runJob(std::move(job), ended);
  });
}

void ScriptPart::runJob(WorkerJob job, const Ended& ended) {
  const std::int64_t mini_batch = job.mini_batch;
  std::optional<ScriptWorkerRun> run;
  std::optional<std::string> error;
  try {
    if (arrivals_->isOver(mini_batch))
      throw Abandoned("worker '" + part_.worker +
                      "': the mini-batch was over before it began there");
    run.emplace(part_, std::move(job), /*python=*/nullptr);
    run->run();
    keepOutput(mini_batch, *run);
  } catch (const c10::Error& failed) {
    error = failed.what_without_backtrace();
  } catch (const std::exception& failed) {
    error = failed.what();
  }
  arrivals_->end(mini_batch, "the mini-batch is over");
  if (error) {
    ended(nullptr, *error);
  } else {
    ended(&*run, {});
  }
}

void ScriptPart::keepOutput(std::int64_t mini_batch, const ScriptWorkerRun& run) {
  at::IValue output = run.output();
  if (output.isNone()) return;
  const std::lock_guard lock(outputs_mutex_);
  // Nobody takes the output of a mini-batch that was given up; abandon() finds what is kept before.
  if (arrivals_->isOver(mini_batch)) return;
  outputs_.insert_or_assign(mini_batch, std::move(output));
}

void ScriptPart::abandon(std::int64_t mini_batch, const std::string& reason) {
  arrivals_->end(mini_batch, reason);
  const std::lock_guard lock(outputs_mutex_);
  outputs_.erase(mini_batch);
}

at::IValue ScriptPart::takeOutput(std::int64_t mini_batch) {
  const std::lock_guard lock(outputs_mutex_);
  auto found = outputs_.extract(mini_batch);
  TORCH_CHECK(!found.empty(), "there is no output of mini-batch ", mini_batch,
              ": it was taken, or the mini-batch has failed");
  return std::move(found.mapped());
}

}  // namespace weft::pipe
