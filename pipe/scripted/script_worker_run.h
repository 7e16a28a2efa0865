// ScriptWorkerRun: one mini-batch at one worker whose stages are all TorchScript. It runs the
// worker's tasks in the order that the driver gave out, and waits for the input of each.
// weft/pipe/_workers/run.py does the same in Python for other stages.
//
// Its own stages may have no replicas or skip connections, keep no graphs for later backwards, and
// use no other device than the CPU; its neighbours' stages may.
//
// Threads: run() once, on one thread, without the GIL; records() may be read meanwhile.
// Failure: run() throws Abandoned if the mini-batch is over elsewhere; std::runtime_error if a task
// failed, which names the stage, its worker, the task and the micro-batch; and what a handler of
// Ctrl-C raised.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pipe/scripted/script_worker_stage.h"
#include "pipe/scripted/worker_job.h"
#include "pipe/workers/arrivals.h"
#include "pipe/workers/deliveries.h"
#include "transport/base/api.h"

namespace weft::pipe {

// The mini-batch was given up elsewhere, or the driver is lost.
struct WEFT_API Abandoned : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class WEFT_API ScriptWorkerRun {
 public:
  // `python`, which may be null, outlives the run. Throws c10::Error for a job that this worker
  // cannot do.
  ScriptWorkerRun(WorkerPart part, WorkerJob job, PythonValues* python);
  ScriptWorkerRun(const ScriptWorkerRun&) = delete;
  ScriptWorkerRun& operator=(const ScriptWorkerRun&) = delete;

  // Before run(): the input of a micro-batch for the first stage, which is here.
  void give(std::int64_t micro_batch, StageArguments arguments);
  // Runs all tasks; returns when the neighbours have what this worker sent.
  void run();

  // One for each task, in order.
  const std::vector<std::shared_ptr<TaskRecord>>& records() const { return records_; }
  // After run(): the sum of the losses; the whole output of a forward alone, None if the last stage
  // is elsewhere; the gradients of the first stage's inputs, by micro-batch.
  const at::Tensor& loss() const { return loss_; }
  at::IValue output() const;
  const std::map<std::int64_t, Tensors>& firstGradients() const { return first_gradients_; }

 private:
  using Place = std::pair<std::int64_t, std::int64_t>;  // stage, micro-batch

  void runTask(TaskRecord& record);
  // What the task needs of another worker; nothing if it needs nothing.
  std::optional<Parcel> take(const WorkerTask& task, TaskRecord& record);
  void forward(const WorkerTask& task, std::optional<Parcel> input, TaskRecord& record);
  void backward(const WorkerTask& task, std::optional<Parcel> gradients, TaskRecord& record);
  void giveOutput(const WorkerTask& task, const at::IValue& output);
  void giveGradients(const WorkerTask& task, Tensors gradients);
  void checkSent(Place place, bool keep);
  const std::string& workerOf(std::int64_t stage, std::int64_t micro_batch) const;

  const WorkerPart part_;
  const WorkerJob job_;
  PythonValues* const python_;
  const std::int64_t last_;  // the last stage
  const std::shared_ptr<Arrivals> arrivals_;
  Deliveries deliveries_;
  std::map<std::int64_t, ScriptWorkerStage> stages_;
  std::vector<bool> splits_;  // by stage: whether its backwards come in two halves
  std::vector<std::shared_ptr<TaskRecord>> records_;
  std::map<Place, StageArguments> own_inputs_;  // from one stage of this worker to another
  std::map<Place, Tensors> own_gradients_;
  std::map<Place, std::vector<Version>> sent_;
  std::map<std::int64_t, std::int64_t> sent_last_;  // the last micro-batch that was sent, by stage
  const std::uint64_t number_;
  at::Tensor loss_;
  std::map<std::int64_t, at::IValue> outputs_;
  std::map<std::int64_t, Tensors> first_gradients_;
};

}  // namespace weft::pipe
