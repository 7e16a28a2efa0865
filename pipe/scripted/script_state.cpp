#include "pipe/scripted/script_state.h"

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <c10/core/GradMode.h>

#include <unordered_set>

namespace weft::pipe {

namespace {

NamedTensors tensorsOf(const ScriptLayer& layer) {
  NamedTensors found;
  for (const auto& one : layer.module.named_parameters())
    found.emplace_back(layer.name + "." + one.name, one.value);
  for (const auto& one : layer.module.named_buffers())
    found.emplace_back(layer.name + "." + one.name, one.value);
  return found;
}

std::vector<at::Tensor> gradientsOf(const ScriptLayers& layers) {
  std::vector<at::Tensor> found;
  for (const auto& [name, parameter] : parametersOf(layers)) {
    if (parameter.grad().defined()) found.push_back(parameter.grad());
  }
  return found;
}

}  // namespace

NamedTensors parametersOf(const ScriptLayers& layers) {
  NamedTensors found;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const ScriptLayer& layer : layers) {
    for (const auto& one : layer.module.named_parameters()) {
      if (seen.insert(one.value.unsafeGetTensorImpl()).second)
        found.emplace_back(layer.name + "." + one.name, one.value);
    }
  }
  return found;
}

StateDict stateOf(const ScriptLayers& layers) {
  StateDict state;
  for (const ScriptLayer& layer : layers) {
    for (const auto& [name, tensor] : tensorsOf(layer))
      state.insert_or_assign(name, tensor.detach());
  }
  return state;
}

LoadedKeys loadState(const ScriptLayers& layers, const StateDict& state) {
  LoadedKeys keys;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const ScriptLayer& layer : layers) {
    for (const auto& [name, tensor] : tensorsOf(layer)) {
      const auto found = state.find(name);
      if (found == state.end()) {
        keys.missing.push_back(name);
        continue;
      }
      TORCH_CHECK(found->value().sizes() == tensor.sizes(), "size mismatch for ", name,
                  ": the state has a tensor of size ", found->value().sizes(),
                  ", the layer one of size ", tensor.sizes());
      keys.used.push_back(name);
      copies.emplace_back(tensor, found->value());
    }
  }
  const at::NoGradGuard no_grad;
  for (const auto& [tensor, value] : copies)
    tensor.copy_(value);
  return keys;
}

void setTraining(const ScriptLayers& layers, bool on) {
  for (const ScriptLayer& layer : layers)
    torch::jit::Module(layer.module).train(on);
}

void clearGradients(const ScriptLayers& layers, bool set_to_none) {
  for (const auto& [name, parameter] : parametersOf(layers)) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none)
      gradient.reset();
    else
      gradient.detach_().zero_();
  }
}

std::vector<at::Tensor> gradientNorms(const ScriptLayers& layers, double norm_type) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& gradient : gradientsOf(layers))
    norms.push_back(at::linalg_vector_norm(gradient, norm_type));
  return norms;
}

void scaleGradients(const ScriptLayers& layers, double factor) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& gradient : gradientsOf(layers))
    multiply(gradient, factor);
}

const at::Tensor& multiply(const at::Tensor& tensor, double by) {
  return tensor.mul_(at::native::wrapped_scalar_tensor(by));
}

}  // namespace weft::pipe
