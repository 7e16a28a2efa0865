// One micro-batch in one stage: runs it, keeps what its backward needs, and runs that.
//
// A cell has a graph of its own, from the alias of its inputs and the boundary of the parameters to
// its outputs. Cells hand each other plain tensors, and gradients.
//
//   kEmpty --run, gradients wanted----------------> kGraph --backward--> kDone
//   kEmpty --run, checkpointed--> kCheckpointed --recompute--> kGraph
//   kEmpty --run, no gradients wanted-------------> kDone
//
// With retain_graph the backward leaves kGraph as it is, and what was recomputed goes back to
// kCheckpointed.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "pipe/engine/gradient_boundary.h"
#include "pipe/engine/pipeline_context.h"
#include "pipe/stage/saved_thread_state.h"

namespace weft::pipe {

// Who else has a wire's memory.
enum class Sharing : unsigned char {
  kNone,
  kAliased,     // another value under way, or a parameter: a change in place would reach that too
  kReplicated,  // the other micro-batches, which each are to find it as it was
};

// A tensor between two cells, without history. Undefined: None. Two wires of one cell that are the
// same tensor arrive in the next cell as the same tensor.
struct Wire {
  at::Tensor value;
  bool differentiable = false;
  Sharing sharing = Sharing::kNone;
};
// Wires that are different tensors with common elements become kAliased.
void markAliases(std::vector<Wire>& wires);

// What StageContext::mini_batch says. Any thread.
std::uint64_t nextMiniBatchNumber();

// What cells of one mini-batch share.
struct CellSetting {
  PipelineContext& pipeline;
  std::size_t micro_batches;
  bool training;
  bool grad;         // gradients are wanted at all
  bool in_backward;  // isRunAgain() of the caller
  SavedThreadState thread_state;
  // Per stage, what it refers to; empty if no gradients are wanted.
  std::vector<std::shared_ptr<StageTensors>> tensors;
  // Per stage: the boundary of its parameters, in the forward and in the present backward.
  std::vector<torch::autograd::edge_list> boundary;
  std::vector<torch::autograd::edge_list> gates_again;
  std::uint64_t number = nextMiniBatchNumber();
};

enum class CellState : unsigned char { kEmpty, kCheckpointed, kGraph, kDone };

class Cell {
 public:
  // The stage's payload, then the skips that come to it (PipelineContext::incoming), then... see
  // outputs.
  struct Input {
    std::vector<Wire> wires;
    std::size_t payload = 0;  // how many of the wires
    std::shared_ptr<const Structure> structure;
  };
  // The payload, then the skips that leave it (PipelineContext::outgoing).
  struct Output {
    std::vector<Wire> wires;
    std::size_t payload = 0;
    std::shared_ptr<const Structure> structure;
  };

  Output run(const CellSetting& setting, std::size_t stage, std::size_t micro_batch, Input input,
             bool checkpoint, const RngTurn& turn);
  void recompute(const CellSetting& setting, const RngTurn& turn);

  struct Gradients {
    std::vector<at::Tensor> inputs;      // per input wire; undefined where there is none
    std::vector<at::Tensor> parameters;  // per wanted gate
  };
  // Gradients of the outputs must have been put into `output_grads`, per output wire.
  Gradients backward(const CellSetting& setting, bool want_inputs,
                     const torch::autograd::edge_list& wanted_gates, bool keep_graph,
                     const RngTurn& turn);
  // Forgets everything.
  void drop();

  CellState state() const { return state_; }
  bool checkpointed() const { return checkpointed_; }
  // The generators' states before the run; nullptr if it used none.
  const RngStates* rng() const { return rng_.get(); }
  std::size_t outputs() const { return output_edges_.size(); }

  std::vector<at::Tensor> output_grads;

 private:
  enum class Pass : unsigned char { kGraph, kCheckpoint, kRecompute };

  Output perform(const CellSetting& setting, Pass pass);
  Batch call(const CellSetting& setting, Pass pass, const std::vector<at::Tensor>& inputs,
             SkipPort& skips);
  std::vector<at::Tensor> aliases(const CellSetting& setting, Pass pass);
  void markSharing(const CellSetting& setting, Output& output) const;
  void refuseSharedWrites(const CellSetting& setting, const std::vector<at::Tensor>& given,
                          const std::vector<std::uint32_t>& versions) const;
  std::uint32_t inputKinds() const;
  bool isNeededAgain(const CellSetting& setting, Pass pass, const Wire& wire) const;
  void assumeGraphs(const CellSetting& setting, Output& output);
  void learnGraphs(const CellSetting& setting, Pass pass, const Output& output);
  void learnInput(const CellSetting& setting, Pass pass, const std::vector<at::Tensor>& given,
                  const std::vector<std::uint32_t>& versions);
  void searchLeaves(const CellSetting& setting) const;

  CellState state_ = CellState::kEmpty;
  bool checkpointed_ = false;
  std::size_t stage_ = 0;
  std::size_t micro_batch_ = 0;
  Input input_;
  std::vector<std::uint32_t> input_versions_;  // after the run, where it will be repeated
  NodePtr input_node_;                         // ends the graph at the inputs
  std::vector<std::int64_t> input_slot_;       // per input wire: its place at that node, or -1
  torch::autograd::edge_list output_edges_;
  std::unique_ptr<const RngStates> rng_;
  std::uint32_t taken_graphless_ =
      0;               // outputs that are differentiable by type, and taken not to be
  bool drew_ = false;  // from a CPU generator, in the run
};

}  // namespace weft::pipe
