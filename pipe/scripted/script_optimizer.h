// ScriptOptimizer: torch.optim's SGD, Adam and AdamW for the parameters of scripted layers, in a
// process without Python.
//
// The arithmetic is that of torch.optim for one tensor after the other (foreach=False), operator by
// operator, so that the bits are the same; torch::optim rounds otherwise. The options come with
// each step: the driver has them, and its learning-rate scheduler changes them.
//
// Threads: one at a time. Failure: c10::Error for options or gradients that it cannot use; then no
// parameter has changed.
#pragma once

#include <string>
#include <unordered_map>

#include "pipe/scripted/script_state.h"
#include "transport/base/api.h"

namespace weft::pipe {

class WEFT_API ScriptOptimizer {
 public:
  // By torch.optim's names; betas are beta1 and beta2, true is 1.
  using Options = std::unordered_map<std::string, double>;
  // What is kept of a parameter, by torch.optim's names; and of each, by its own.
  using Kept = std::unordered_map<std::string, at::Tensor>;
  using State = std::unordered_map<std::string, Kept>;

  explicit ScriptOptimizer(NamedTensors parameters) : parameters_(std::move(parameters)) {}

  // `kind`: "sgd", or "adam" for Adam and AdamW.
  void step(const std::string& kind, const Options& options);
  const State& state() const { return state_; }
  // Takes the place of what is kept. Throws for a tensor of another size than its
  // parameter.
  void load(State state);

 private:
  const NamedTensors parameters_;
  State state_;
};

}  // namespace weft::pipe
