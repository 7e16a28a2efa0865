// MiniBatch: runs its forward, keeps what a backward needs, and runs the backward.
//
// Threads: forward() once; backward() any, one at a time (beginBackward). Failure: throws what a
// stage throws.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "pipe/cell/gradient_accumulator.h"
#include "pipe/cell/micro_batch_cell.h"
#include "pipe/cell/mini_batch_context.h"
#include "pipe/data/memory.h"
#include "pipe/engine/pipeline_job.h"

namespace weft::pipe {

// What a pipeline is called with.
struct ForwardInput {
  std::vector<at::Tensor> tensors;  // in the order of the structure; history and all
  std::vector<Scatter> how;         // per tensor
  std::shared_ptr<const Structure> structure;
  std::size_t chunks = 1;
  bool training = false;
  Checkpoint checkpoint = Checkpoint::kNever;
  bool in_plain_order = false;  // see plain_order.h
  bool in_order = false;        // one task after the other, on the calling thread
};

class MiniBatch {
 public:
  // `tensors`: what each stage refers to, if gradients are wanted; else empty.
  MiniBatch(std::shared_ptr<PipelineContext> pipeline, ForwardInput input,
            std::vector<std::shared_ptr<StageTensors>> tensors);

  // Runs the forward, once. The gathered tensors have no history; `differentiable` says which of
  // them should get one.
  struct Result {
    Gathered gathered;
    std::vector<bool> differentiable;
  };
  Result forward();

  // Held while a backward runs. Throws while another one does, and after one that kept no graph.
  std::unique_lock<std::mutex> beginBackward();
  // The gradients of the mini-batch, of the input tensors and then of the parameters; undefined if
  // there is none, none is wanted, or the accumulator has got it. `grads`: per gathered tensor.
  // Where it throws and was to keep the graph, the mini-batch is as before.
  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& grads, const Wanted& wanted,
                                   bool keep_graph);

  const ForwardInput& input() const { return input_; }
  const MiniBatchContext& context() const { return context_; }
  // Whether no input has been changed in place since the forward began.
  bool inputsAreUnchanged() const { return versionsOf(input_.tensors) == input_versions_; }
  // After forward().
  const MicroBatchCell& cell(CellIndex index) const { return cells_[placeOf(index)]; }
  const std::vector<Gathered::Source>& sources() const { return sources_; }

 private:
  std::size_t placeOf(CellIndex index) const {
    return index.micro_batch * pipeline_->stages.size() + index.stage;
  }
  void run(PipelineJob& job, ThreadPolicy& policy);
  void abandonBackward();
  Activations firstInput(std::vector<at::Tensor> tensors) const;
  bool isCheckpointed(std::size_t micro_batch) const;
  Result joinOutputs(PipelineJob& job);
  std::vector<at::Tensor> tensorsOfStages() const;
  void separateOutputs(Gathered& gathered) const;
  void splitGrads(const std::vector<at::Tensor>& grads, PipelineJob& job) const;
  std::vector<at::Tensor> joinInputGrads(PipelineJob& job) const;

  const std::shared_ptr<PipelineContext> pipeline_;
  const ForwardInput input_;
  MiniBatchContext context_;
  const std::optional<std::size_t> compile_key_;     // ThreadPolicy's
  const std::vector<std::uint32_t> input_versions_;  // if gradients are wanted
  std::mutex backward_runs_;
  bool spent_ = false;  // a backward that keeps no graph has run: some cells have none any more
  std::vector<MicroBatchCell> cells_;
  std::vector<Gathered::Source> sources_;
  std::vector<std::size_t> output_sizes_;  // per micro-batch: tensors that the last stage gave
};

}  // namespace weft::pipe
