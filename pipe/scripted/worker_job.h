// WorkerJob: what one worker does in one mini-batch, as the driver gave it out; WorkerPart: the
// worker's part of the pipeline, which stays the same.
//
// Any thread.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipe/scripted/script_values.h"
#include "transport/base/api.h"

namespace weft::pipe {

struct WorkerTask {
  enum class Kind : std::uint8_t { kForward, kBackward, kWeights };
  Kind kind = Kind::kForward;
  std::int64_t stage = 0;
  std::int64_t micro_batch = 0;
};
WEFT_API const char* nameOf(WorkerTask::Kind kind);            // "forward", "backward", "weights"
WEFT_API WorkerTask::Kind kindNamed(const std::string& name);  // throws c10::Error for others

// When a task ran: nanoseconds of CLOCK_MONOTONIC, 0 for not yet. Any thread may read it.
struct TaskRecord {
  WorkerTask task;
  std::int64_t mini_batch = 0;
  std::atomic<std::int64_t> created{0};
  std::atomic<std::int64_t> started{0};  // its input was here
  std::atomic<std::int64_t> ended{0};
};

// A worker's part of a pipeline.
struct WorkerPart {
  std::string pipeline;
  std::string worker;  // this one
  std::string driver;
  // The workers of each stage of the pipeline; replicas take the micro-batches in turn.
  std::vector<std::vector<std::string>> places;
  std::map<std::int64_t, std::vector<torch::jit::Module>> stages;  // the stages here
};

struct WorkerJob {
  std::int64_t mini_batch = 0;
  std::vector<WorkerTask> tasks;
  std::vector<bool> recompute;  // for each micro-batch
  bool trains = false;          // false: it has only forwards
  // At the worker of the last stage, in training; a weight for each micro-batch.
  std::optional<torch::jit::Module> criterion;
  Values targets;
  std::vector<double> weights;
};

// Throws c10::Error if the worker cannot do the job.
void checkJob(const WorkerPart& part, const WorkerJob& job);

}  // namespace weft::pipe
