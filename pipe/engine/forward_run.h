// One mini-batch: its forward, and what its backward needs.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "pipe/cell/mini_batch_context.h"
#include "pipe/engine/cell_grid.h"
#include "pipe/engine/gradient_accumulator.h"
#include "pipe/engine/parameter_set.h"
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
  bool plain = false;  // see double_backward.h
};

class ForwardRun {
 public:
  // `tensors`: what each stage refers to, if gradients are wanted; else empty.
  ForwardRun(std::shared_ptr<PipelineContext> pipeline, ForwardInput input,
             std::vector<std::shared_ptr<StageTensors>> tensors);

  // Once. The gathered tensors have no history; `differentiable` says which should get one.
  struct Result {
    Gathered gathered;
    std::vector<bool> differentiable;
  };
  Result forward();

  // The gradients of the whole, per input tensor and per parameter; undefined where there is none,
  // none is wanted, or the accumulator has got it. `grads`: per gathered tensor. Throws while
  // another backward of it runs.
  struct Gradients {
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> parameters;
  };
  Gradients backward(const std::vector<at::Tensor>& grads, const Wanted& wanted, bool keep_graph);

  const ForwardInput& input() const { return input_; }
  const ParameterSet& parameters() const { return parameters_; }
  // Since before the forward.
  bool inputsAreUnchanged() const { return versionsOf(input_.tensors) == input_versions_; }
  // After forward().
  const MiniBatchContext& context() const { return *context_; }
  const CellGrid& cells() const { return *cells_; }
  const std::vector<Gathered::Source>& sources() const { return sources_; }

 private:
  std::size_t stages() const { return pipeline_->stages.size(); }
  std::vector<Activations> firstInputs(std::vector<std::vector<at::Tensor>> micro_batches) const;
  bool isCheckpointed(std::size_t micro_batch) const;
  void run(PipelineJob& job, ThreadPolicy& policy);
  void separateOutputs(Gathered& gathered) const;
  std::vector<std::vector<at::Tensor>> splitGrads(const std::vector<at::Tensor>& grads) const;
  std::vector<at::Tensor> joinInputGrads(std::vector<std::vector<at::Tensor>> grads) const;

  const std::shared_ptr<PipelineContext> pipeline_;
  ForwardInput input_;
  const std::vector<std::uint32_t> input_versions_;
  std::vector<std::shared_ptr<StageTensors>> tensors_;  // per stage, or none
  ParameterSet parameters_;
  const bool grad_;
  std::mutex backward_runs_;
  std::optional<MiniBatchContext> context_;
  std::optional<CellGrid> cells_;
  std::vector<Gathered::Source> sources_;
  std::vector<std::size_t> output_sizes_;  // per micro-batch: tensors that the last stage gave
};

}  // namespace weft::pipe
