#include "pipe/scripted/script_worker_stage.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "pipe/cell/gradient_boundary.h"
#include "pipe/workers/stage_errors.h"

namespace weft::pipe {

namespace {

bool fits(const Values& arguments, const c10::FunctionSchema& schema) {
  const auto& wanted = schema.arguments();  // self is the first
  if (arguments.size() >= wanted.size()) return false;
  for (std::size_t at = 0; at < arguments.size(); ++at) {
    const c10::TypePtr& type = wanted[at + 1].type();
    const bool is_tensor = arguments[at].isTensor() && type->kind() == c10::TypeKind::TensorType;
    if (!is_tensor && !arguments[at].type()->isSubtypeOf(*type)) return false;
  }
  return true;
}

at::IValue callScript(const torch::jit::Module& module, Values arguments, PythonValues* python) {
  const torch::jit::Method method = module.get_method("forward");
  const c10::FunctionSchema& schema = method.function().getSchema();
  if (python != nullptr && !fits(arguments, schema))
    arguments = python->convert(std::move(arguments), schema);
  return method(std::move(arguments));
}

Tensors gradientsOfLeaves(const Tensors& leaves) {
  Tensors found;
  for (const at::Tensor& leaf : leaves) {
    found.push_back(leaf.grad());
    leaf.mutable_grad().reset();
  }
  return found;
}

}  // namespace

std::vector<Version> withVersions(const Tensors& tensors) {
  std::vector<Version> versions;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_inference()) versions.emplace_back(tensor, tensor._version());
  }
  return versions;
}

bool haveChanged(const std::vector<Version>& versions) {
  return std::any_of(versions.begin(), versions.end(),
                     [](const Version& one) { return one.first._version() != one.second; });
}

ScriptWorkerStage::ScriptWorkerStage(std::vector<torch::jit::Module> layers, PythonValues* python)
    : layers_(std::move(layers)), python_(python) {
  TORCH_CHECK(!layers_.empty(), "a stage needs at least one layer");
}

const c10::FunctionSchema& ScriptWorkerStage::schema() const {
  return layers_[0].get_method("forward").function().getSchema();
}

at::IValue ScriptWorkerStage::forward(const StageContext& at, StageArguments arguments,
                                      bool recompute) {
  Held held;
  const at::IValue output = run(at, std::move(arguments), recompute, held);
  Tensors wanted = thatWantGradients(tensorsOf({output}));
  held.wanted = wanted.size();
  if (!held.again) held.outputs = std::move(wanted);
  at::IValue given = cut(output);
  hold(at.micro_batch, std::move(held));
  return given;
}

at::Tensor ScriptWorkerStage::loss(const StageContext& at, StageArguments arguments, bool recompute,
                                   const torch::jit::Module& criterion, const at::IValue& target,
                                   double weight) {
  Held held;
  at::IValue output = run(at, std::move(arguments), recompute, held);
  if (held.again) {
    output = cut(output);
    held.cuts = thatWantGradients(tensorsOf({output}));
    held.wanted = held.cuts.size();
    output = withTensors(output, aliasOf);  // which the loss may change in place
  }
  const at::IValue made = callScript(criterion, {output, onHost(target)}, python_);
  TORCH_CHECK(at::GradMode::is_enabled(), stage_errors::kLeavesGradientsOff);
  TORCH_CHECK(made.isTensor() && made.toTensor().numel() == 1 && !made.toTensor().is_complex(),
              "the loss of a micro-batch must be a tensor of one real number, got ", made);
  TORCH_CHECK(made.toTensor().requires_grad(), stage_errors::kHasNoGraph);
  if (weight == 0) {  // it counts nothing, and as a mean of nothing has no number and no gradient
    Held inputs_alone;
    inputs_alone.inputs = std::move(held.inputs);
    hold(at.micro_batch, std::move(inputs_alone));
    return at::zeros({}, made.toTensor().options());
  }
  const at::Tensor loss = made.toTensor().reshape({}) * weight;
  held.outputs.push_back(loss);
  hold(at.micro_batch, std::move(held));
  return loss.detach();
}

Tensors ScriptWorkerStage::backward(std::size_t micro_batch,
                                    const std::optional<Tensors>& gradients) {
  Held held = take(micro_batch);
  const Roots found = roots(held, gradients);
  if (found.outputs.empty()) return Tensors(held.inputs.size());
  torch::autograd::backward(found.outputs, found.gradients);
  return gradientsOfLeaves(held.inputs);
}

Tensors ScriptWorkerStage::inputGradients(std::size_t micro_batch,
                                          const std::optional<Tensors>& gradients) {
  Held held = take(micro_batch);
  const Roots found = roots(held, gradients);
  if (found.outputs.empty()) return Tensors(held.inputs.size());
  auto half = std::make_unique<SplitBackward>(found.outputs, held.inputs);
  if (!half->isSplit()) {  // it adds to gradients now, and those before it come first
    for (auto& [number, earlier] : half_done_)
      earlier->accumulateParameterGradients();
    half_done_.clear();
  }
  auto& kept = half_done_[micro_batch] = std::move(half);
  return kept->inputGradients(found.gradients);
}

void ScriptWorkerStage::weights(std::size_t micro_batch) {
  const auto half = half_done_.find(micro_batch);
  if (half == half_done_.end()) return;
  half->second->accumulateParameterGradients();
  half_done_.erase(half);
}

at::IValue ScriptWorkerStage::run(const StageContext& at, StageArguments arguments, bool recompute,
                                  Held& held) {
  const bool with_graph = at::GradMode::is_enabled();
  const bool again = recompute && with_graph;
  for (at::IValue& value : arguments.values)
    value = onHost(value);
  const Tensors tensors = tensorsOf(arguments.values);
  held.inputs = thatWantGradients(tensors);
  std::vector<Version> versions;
  if (again || arguments.lost_sharing) versions = withVersions(tensors);
  StageContext context = at;
  context.checkpointing = again;
  std::unique_ptr<RepeatedDraws> draws;
  if (again) {
    draws = std::make_unique<RepeatedDraws>(c10::Device(c10::kCPU), at.stage);
    draws->begin();
  }
  at::IValue output;
  try {
    const StageContextGuard guard(context);
    output = call(arguments.values);
  } catch (const std::runtime_error& error) {  // TorchScript's
    const std::string said = error.what();
    TORCH_CHECK(said.find(stage_errors::kALeaf) == std::string::npos, said, " ",
                stage_errors::kLeafIsInput);
    throw;
  }
  if (again) draws->end();
  TORCH_CHECK(!with_graph || at::GradMode::is_enabled(), stage_errors::kLeavesGradientsOff);
  TORCH_CHECK(!haveChanged(versions),
              again ? stage_errors::kChangesItsInput : stage_errors::kChangesOneOfSeveral);
  if (again)
    held.again = Again{at, std::move(arguments.values), std::move(versions), std::move(draws),
                       OutputSample(tensorsOf({output}))};
  return output;
}

at::IValue ScriptWorkerStage::call(Values arguments) const {
  at::IValue value;
  for (const torch::jit::Module& layer : layers_) {
    value = callScript(layer, std::move(arguments), python_);
    arguments = asArguments(value);
  }
  return value;
}

void ScriptWorkerStage::hold(std::size_t micro_batch, Held held) {
  if (at::GradMode::is_enabled()) held_.insert_or_assign(micro_batch, std::move(held));
}

ScriptWorkerStage::Held ScriptWorkerStage::take(std::size_t micro_batch) {
  auto found = held_.extract(micro_batch);
  TORCH_CHECK(!found.empty(), "micro-batch ", micro_batch, " had no forward on this worker");
  return std::move(found.mapped());
}

ScriptWorkerStage::Roots ScriptWorkerStage::roots(Held& held,
                                                  const std::optional<Tensors>& gradients) const {
  TORCH_CHECK(!held.again || !haveChanged(held.again->versions), stage_errors::kInputHasChanged);
  Tensors found;
  if (gradients) {
    found = *gradients;
  } else {
    for (const at::Tensor& output : held.outputs)
      found.push_back(at::ones_like(output));
  }
  if (held.again && !gradients) {
    torch::autograd::backward(held.outputs, found);
    found = gradientsOfLeaves(held.cuts);
  }
  const std::size_t wanted = held.again ? held.wanted : held.outputs.size();
  TORCH_CHECK(found.size() == wanted, "the stage has ", wanted,
              " outputs that require a gradient, and got gradients for ", found.size());
  const bool any =
      std::any_of(found.begin(), found.end(), [](const at::Tensor& one) { return one.defined(); });
  if (!any) return {};
  const Tensors outputs = held.again ? runAgain(held) : std::move(held.outputs);
  Roots roots;
  for (std::size_t at = 0; at < outputs.size(); ++at) {
    if (!found[at].defined()) continue;
    roots.outputs.push_back(outputs[at]);
    roots.gradients.push_back(found[at].to(outputs[at].device()));
  }
  return roots;
}

Tensors ScriptWorkerStage::runAgain(const Held& held) const {
  StageContext context = held.again->context;
  context.recomputing = true;
  held.again->draws->begin();
  at::IValue output;
  {
    const StageContextGuard guard(context);
    output = call(held.again->arguments);
  }
  held.again->draws->end();
  const Tensors given = tensorsOf({output});
  held.again->sample.checkRepeated(given, context.stage);
  Tensors outputs = thatWantGradients(given);
  TORCH_CHECK(outputs.size() == held.wanted, "the outputs that require a gradient are ",
              outputs.size(), " in the stage's recomputation, and were ", held.wanted,
              " in its forward");
  return outputs;
}

}  // namespace weft::pipe
