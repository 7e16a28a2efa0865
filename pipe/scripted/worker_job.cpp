#include "pipe/scripted/worker_job.h"

#include <c10/util/Exception.h>

namespace weft::pipe {

using Kind = WorkerTask::Kind;

const char* nameOf(WorkerTask::Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return "forward";
    case Kind::kBackward:
      return "backward";
    case Kind::kWeights:
      return "weights";
  }
  return "";
}

WorkerTask::Kind kindNamed(const std::string& name) {
  for (const auto kind : {Kind::kForward, Kind::kBackward, Kind::kWeights}) {
    if (name == nameOf(kind)) return kind;
  }
  TORCH_CHECK(false, "there is no task of this kind: ", name);
}

void checkJob(const WorkerPart& part, const WorkerJob& job) {
  const auto last = static_cast<std::int64_t>(part.places.size()) - 1;
  const auto count = static_cast<std::int64_t>(job.recompute.size());
  for (const auto& [number, layers] : part.stages) {
    TORCH_CHECK(number >= 0 && number <= last, "the Pipe has no stage ", number);
    const auto& workers = part.places[static_cast<std::size_t>(number)];
    TORCH_CHECK(workers.size() == 1 && workers[0] == part.worker, "stage ", number,
                " of the Pipe is not on worker '", part.worker, "' alone");
  }
  for (const auto& workers : part.places)
    TORCH_CHECK(!workers.empty(), "a stage of the Pipe has no worker");
  for (const WorkerTask& task : job.tasks) {
    TORCH_CHECK(part.stages.contains(task.stage), "worker '", part.worker, "' is to run stage ",
                task.stage, " of the Pipe, which it does not have");
    TORCH_CHECK(task.micro_batch >= 0 && task.micro_batch < count, "the mini-batch has ", count,
                " micro-batches, and a task is of number ", task.micro_batch);
    TORCH_CHECK(job.trains || task.kind == Kind::kForward, "a forward alone has no other tasks");
  }
  if (!job.trains || !part.stages.contains(last)) return;
  TORCH_CHECK(job.criterion.has_value(), "the last stage has no loss");
  TORCH_CHECK(
      job.targets.size() == job.recompute.size() && job.weights.size() == job.recompute.size(),
      "there are not as many targets and weights as micro-batches");
}

}  // namespace weft::pipe
