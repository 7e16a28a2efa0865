// CellInput: what a cell takes, and the aliases of it with which the stage is called.
//
// The aliases begin the cell's graph: their history is one node, at which the cell's backward ends
// and finds the gradients of the inputs.
//
// Threads: one at a time. Failure: c10::Error for an input that was changed in place although it is
// needed as it was.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipe/cell/activation.h"
#include "pipe/cell/mini_batch_context.h"
#include "third_party/torch/torch_compat.h"

namespace weft::pipe {

// Why a cell runs its stage.
enum class CellPass : unsigned char {
  kGraph,       // the forward
  kCheckpoint,  // the forward, without a graph
  kRecompute,   // again, for the backward of a checkpointed cell
};

class CellInput {
 public:
  // The context outlives this.
  CellInput(MiniBatchContext& context, std::size_t stage) : context_(&context), stage_(stage) {}

  void set(Activations input) { input_ = std::move(input); }
  const Activations& activations() const { return input_; }
  bool anyDifferentiable() const;

  // The tensors to call the stage with: aliases whose history is node(), and copies of inputs that
  // are needed again and that the stage may change in place.
  std::vector<at::Tensor> alias(CellPass pass);
  // After the stage has run on `given`, whose versions were `versions`: learns whether it changes
  // its input in place.
  void learnFrom(CellPass pass, const std::vector<at::Tensor>& given,
                 const std::vector<std::uint32_t>& versions) const;

  // For a cell that will run again: remembers the inputs as they are now.
  void noteVersions();
  // Before it runs again: throws if an input was changed since.
  void checkVersions() const;

  // Where the graph of the last pass ends at the inputs; null: nowhere.
  const NodePtr& node() const { return node_; }
  // Per input: its place at node(), or -1 if no gradient is wanted.
  const std::vector<std::int64_t>& slots() const { return slots_; }
  // How many of the inputs are the payload; the others are skips.
  std::size_t payloadSize() const { return input_.payload_size; }

  // The graph keeps what it needs of the inputs.
  void dropValues();
  void dropNode() { node_ = NodePtr(); }
  void drop();

 private:
  bool isNeededAgain(CellPass pass, const Activation& input) const;

  MiniBatchContext* context_;
  std::size_t stage_;
  Activations input_;
  std::vector<std::uint32_t> versions_;  // see noteVersions()
  NodePtr node_;
  std::vector<std::int64_t> slots_;
};

}  // namespace weft::pipe
