// One mini-batch on its way: the cells, the forward by the clock, the backward against it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "pipe/engine/cell.h"
#include "pipe/engine/pipeline_context.h"

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

// Which gradients a backward has to find.
struct Wanted {
  std::vector<bool> inputs;      // per input tensor
  std::vector<bool> parameters;  // per parameter of ForwardRun::parameters()
  // Per parameter: its accumulator, if that may be given gradients of micro-batches one by one, on
  // a stage's thread, and nullptr if the whole's gradient is to be returned.
  std::vector<torch::autograd::Node*> accumulators;
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
  // none is wanted, or the accumulator has got it. `grads`: per gathered tensor. One at a time.
  struct Gradients {
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> parameters;
  };
  Gradients backward(const std::vector<at::Tensor>& grads, const Wanted& wanted, bool keep_graph);
  // Before a stage runs again: throws if a parameter was changed in place since.
  void checkParameters() const;

  // Lets go of all graphs.
  void drop();

  // The parameters that require a gradient, each once, whatever number of stages has it.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const ForwardInput& input() const { return input_; }
  const PipelineContext& pipeline() const { return *pipeline_; }
  const CellSetting& setting() const { return *setting_; }
  const std::vector<Gathered::Source>& sources() const { return sources_; }
  std::size_t microBatches() const { return micro_batches_; }
  Cell& cell(std::size_t micro_batch, std::size_t stage) {
    return cells_[micro_batch * pipeline_->stages.size() + stage];
  }
  std::size_t stages() const { return pipeline_->stages.size(); }

 private:
  friend class ForwardJob;
  friend class BackwardJob;

  bool checkpointed(std::size_t micro_batch) const;
  void run(Pace& pace, const TaskGraph& graph, Job& job) const;
  void noteVersions();
  void separateOutputs(Gathered& gathered) const;
  std::vector<torch::autograd::edge_list> edgesPerStage(const GradientBoundary& boundary) const;

  const std::shared_ptr<PipelineContext> pipeline_;
  ForwardInput input_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::vector<std::size_t>> parameters_of_;  // per stage, places in parameters_
  std::vector<std::shared_ptr<StageTensors>> tensors_;   // per stage, or none
  std::vector<std::uint32_t> versions_;                  // of parameters_, when they were last used
  const bool grad_;
  std::size_t micro_batches_ = 0;
  std::vector<Cell> cells_;
  std::optional<CellSetting> setting_;
  std::vector<Gathered::Source> sources_;
  std::vector<std::size_t> output_wires_;  // per micro-batch, of the last stage
};

}  // namespace weft::pipe
