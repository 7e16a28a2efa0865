// ScriptWorkerStage: a stage of a worker whose layers are all TorchScript. It runs forward and
// backward, one micro-batch at a time, as weft/pipe/_workers/stage.py does in Python.
//
// The stage has an autograd graph of its own: its inputs are leaves, whose gradients go back to the
// stage before. A micro-batch that is recomputed keeps only its arguments: its graph is freed when
// the forward ends, and made again for the backward, with the same random numbers.
//
// Threads: one at a time, without the GIL, in the grad mode of the caller. Failure: throws what a
// layer throws, and c10::Error if a layer changes in place what is needed as it was, or computes
// something else when it runs again.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "pipe/scripted/script_values.h"
#include "pipe/stage/output_sample.h"
#include "pipe/stage/stage_context.h"
#include "pipe/workers/repeated_draws.h"
#include "pipe/workers/split_backward.h"
#include "transport/base/api.h"

namespace weft::pipe {

// A tensor that must not change, and its version. Those of inference mode have none.
using Version = std::pair<at::Tensor, std::uint32_t>;
std::vector<Version> withVersions(const Tensors& tensors);
bool haveChanged(const std::vector<Version>& versions);

class WEFT_API ScriptWorkerStage {
 public:
  // `python`, which may be null, outlives the stage.
  ScriptWorkerStage(std::vector<torch::jit::Module> layers, PythonValues* python);

  // The first layer's, which says what the stage takes.
  const c10::FunctionSchema& schema() const;
  // The output for the next stage, cut off from this stage's graph. With gradients, keeps what a
  // backward needs.
  at::IValue forward(const StageContext& at, StageArguments arguments, bool recompute);
  // As forward() in the last stage: the loss of the micro-batch, times its weight.
  at::Tensor loss(const StageContext& at, StageArguments arguments, bool recompute,
                  const torch::jit::Module& criterion, const at::IValue& target, double weight);
  // The gradients of the inputs that want one, undefined if the output does not depend on the
  // input; adds to those of the parameters. `gradients`: of the outputs that want one; none for the
  // loss.
  Tensors backward(std::size_t micro_batch, const std::optional<Tensors>& gradients);
  // The same in two halves: weights() adds to the parameters' gradients.
  Tensors inputGradients(std::size_t micro_batch, const std::optional<Tensors>& gradients);
  void weights(std::size_t micro_batch);

 private:
  struct Again {  // what a recomputation needs
    StageContext context;
    Values arguments;
    std::vector<Version> versions;
    std::unique_ptr<RepeatedDraws> draws;
    OutputSample sample;
  };
  struct Held {
    Tensors inputs;          // leaves whose gradients the stage before wants
    Tensors outputs;         // the next stage gives their gradients; or the loss
    Tensors cuts;            // where the loss's graph ends, if the layers' graph is made again
    std::size_t wanted = 0;  // how many outputs a recomputation gives
    std::optional<Again> again;
  };
  // Outputs of a graph, and their gradients.
  struct Roots {
    Tensors outputs;
    Tensors gradients;
  };

  at::IValue run(const StageContext& at, StageArguments arguments, bool recompute, Held& held);
  at::IValue call(Values arguments) const;
  void hold(std::size_t micro_batch, Held held);
  Held take(std::size_t micro_batch);
  Roots roots(Held& held, const std::optional<Tensors>& gradients) const;
  Tensors runAgain(const Held& held) const;

  const std::vector<torch::jit::Module> layers_;
  PythonValues* const python_;
  std::map<std::size_t, Held> held_;
  std::map<std::size_t, std::unique_ptr<SplitBackward>> half_done_;
};

}  // namespace weft::pipe
