// The state of scripted layers, by the names that a plain nn.Sequential gives it: what
// weft/pipe/_workers/state.py and worker_optimizer.py do in Python.
//
// Threads: one at a time, and none while a mini-batch runs. Failure: c10::Error, and nothing has
// changed.
#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>

#include <string>
#include <utility>
#include <vector>

#include "transport/base/api.h"

namespace weft::pipe {

struct ScriptLayer {
  std::string name;
  torch::jit::Module module;
};
using ScriptLayers = std::vector<ScriptLayer>;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
using StateDict = c10::Dict<std::string, at::Tensor>;

struct LoadedKeys {
  std::vector<std::string> missing;
  std::vector<std::string> used;
};

// The parameters, each once, by its first name.
WEFT_API NamedTensors parametersOf(const ScriptLayers& layers);
// Parameters and buffers, which share memory with the layers.
WEFT_API StateDict stateOf(const ScriptLayers& layers);
// Copies what there is for these layers. Throws for a tensor of another size.
WEFT_API LoadedKeys loadState(const ScriptLayers& layers, const StateDict& state);

WEFT_API void setTraining(const ScriptLayers& layers, bool on);
WEFT_API void clearGradients(const ScriptLayers& layers, bool set_to_none);
// The norms of the parameters' gradients, as far as they have some.
WEFT_API std::vector<at::Tensor> gradientNorms(const ScriptLayers& layers, double norm_type);
WEFT_API void scaleGradients(const ScriptLayers& layers, double factor);

// Multiplies in place as Python's mul_() with a number does. C++'s mul_() rounds the number to a
// bfloat16 or float16 first.
const at::Tensor& multiply(const at::Tensor& tensor, double by);

}  // namespace weft::pipe
