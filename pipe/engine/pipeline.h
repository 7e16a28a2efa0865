// Pipeline: a chain of stages through which mini-batches go in micro-batches.
//
// To autograd a whole mini-batch is one node. Its inputs are the pipeline's inputs and all
// parameters, its outputs the gathered outputs. Inside, each cell of the schedule has a graph of
// its own, and the node's backward runs these graphs in the schedule's reverse order, each on its
// stage's thread. So CPU stages overlap in the backward, too (autograd alone would run all CPU
// nodes on the calling thread), each parameter gets its gradient once, and only what is asked for
// is computed. docs/guide/pipe.md says what this costs.
#pragma once

#include <memory>
#include <vector>

#include "pipe/engine/mini_batch.h"
#include "transport/base/api.h"

namespace weft::pipe {

class WEFT_API Pipeline {
 public:
  // One device per stage. Starts no thread.
  Pipeline(std::vector<std::shared_ptr<Stage>> stages, std::vector<c10::Device> devices,
           std::vector<SkipRoute> routes, ThreadHooks hooks);
  // Waits for the threads. Graphs that are still alive start other threads if they need them.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Runs a mini-batch; the result has a history if gradients are wanted. Throws what the earliest
  // failing stage threw; the pipeline can be used afterwards. Any thread, without the GIL.
  Batch run(ForwardInput input);

  // Ends the threads; they are started again when needed.
  void rest();
  std::size_t threads() const;
  // For tests.
  void setThreading(Threading threading);
  void startRecording();
  std::vector<Event> stopRecording();

 private:
  const std::shared_ptr<PipelineContext> context_;
};

}  // namespace weft::pipe
