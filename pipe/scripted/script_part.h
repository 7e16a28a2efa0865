// ScriptPart: a worker's part of a pipeline in a process without Python: its scripted stages, what
// has come for them, their optimizer. What weft/pipe/_workers/part.py is in Python.
//
// Threads: any. A mini-batch runs on a thread of its own, one at a time; the state is for who has
// no mini-batch running. Failure: c10::Error for what it has not or cannot do.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "pipe/scripted/script_optimizer.h"
#include "pipe/scripted/script_state.h"
#include "pipe/scripted/script_worker_run.h"
#include "transport/base/api.h"

namespace weft::pipe {

class WEFT_API ScriptPart {
 public:
  // How a mini-batch ended: the run, or null and why it failed. On the mini-batch's thread.
  using Ended = std::function<void(const ScriptWorkerRun* run, const std::string& error)>;

  // `part.stages` is empty: it is made of `stages`. Opens the pipeline's Arrivals.
  ScriptPart(WorkerPart part, const std::map<std::int64_t, ScriptLayers>& stages);
  // Ends what runs, and waits for it.
  ~ScriptPart();
  ScriptPart(const ScriptPart&) = delete;
  ScriptPart& operator=(const ScriptPart&) = delete;

  // The mini-batches before it are over.
  void run(WorkerJob job, Ended ended);
  // What runs ends at its next wait.
  void close() { closeArrivals(part_.pipeline, arrivals_); }
  // The mini-batch is over: its run, if there is one, stops at its next wait; its output is gone.
  void abandon(std::int64_t mini_batch, const std::string& reason);
  // The output of a forward, once.
  at::IValue takeOutput(std::int64_t mini_batch);

  const ScriptLayers& layers() const { return layers_; }  // of all stages, in order
  ScriptOptimizer& optimizer() { return *optimizer_; }
  void makeOptimizer();  // a new one, which has kept nothing

 private:
  void runJob(WorkerJob job, const Ended& ended);
  void keepOutput(std::int64_t mini_batch, const ScriptWorkerRun& run);

  WorkerPart part_;
  ScriptLayers layers_;
  std::unique_ptr<ScriptOptimizer> optimizer_;
  const std::shared_ptr<Arrivals> arrivals_;
  std::mutex outputs_mutex_;
  std::map<std::int64_t, at::IValue> outputs_;  // by mini-batch
  std::mutex runner_mutex_;
  std::thread runner_;  // of the last mini-batch
};

}  // namespace weft::pipe
