#include "pipe/scripted/script_optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

namespace weft::pipe {

namespace {

using Kept = ScriptOptimizer::Kept;
using Options = ScriptOptimizer::Options;

double option(const Options& options, const char* name) {
  const auto found = options.find(name);
  TORCH_CHECK(found != options.end(), "the optimizer has no option '", name,
              "'; install the same Weft on all workers");
  return found->second;
}

bool isOn(const Options& options, const char* name) { return option(options, name) != 0; }

// torch.optim.sgd._single_tensor_sgd
struct Sgd {
  explicit Sgd(const Options& options)
      : lr(option(options, "lr")),
        momentum(option(options, "momentum")),
        dampening(option(options, "dampening")),
        weight_decay(option(options, "weight_decay")),
        nesterov(isOn(options, "nesterov")),
        maximize(isOn(options, "maximize")) {}

  void operator()(const at::Tensor& parameter, Kept& kept) const {
    at::Tensor gradient = maximize ? parameter.grad().neg() : parameter.grad();
    if (weight_decay != 0) gradient = gradient.add(parameter, weight_decay);
    if (momentum != 0) {
      at::Tensor& buffer = kept["momentum_buffer"];
      if (buffer.defined())
        multiply(buffer, momentum).add_(gradient, 1 - dampening);
      else
        buffer = gradient.detach().clone();
      gradient = nesterov ? gradient.add(buffer, momentum) : buffer;
    }
    parameter.add_(gradient, -lr);
  }

  double lr, momentum, dampening, weight_decay;
  bool nesterov, maximize;
};

// torch.optim.adam._single_tensor_adam
struct Adam {
  explicit Adam(const Options& options)
      : lr(option(options, "lr")),
        beta1(option(options, "beta1")),
        beta2(option(options, "beta2")),
        eps(option(options, "eps")),
        weight_decay(option(options, "weight_decay")),
        decoupled(isOn(options, "decoupled_weight_decay")),
        amsgrad(isOn(options, "amsgrad")),
        maximize(isOn(options, "maximize")) {}

  void operator()(const at::Tensor& parameter, Kept& kept) const {
    at::Tensor gradient = maximize ? parameter.grad().neg() : parameter.grad();
    if (kept.empty()) begin(parameter, kept);
    at::Tensor& average = kept.at("exp_avg");
    at::Tensor& square = kept.at("exp_avg_sq");
    const double step = kept.at("step").add_(1).item<double>();
    if (weight_decay != 0) {
      if (decoupled)
        multiply(parameter, 1 - lr * weight_decay);
      else
        gradient = gradient.add(parameter, weight_decay);
    }
    average.lerp_(gradient, 1 - beta1);
    multiply(square, beta2).addcmul_(gradient, gradient, 1 - beta2);
    const double step_size = lr / (1 - std::pow(beta1, step));
    const double correction = std::pow(1 - std::pow(beta2, step), 0.5);
    const at::Tensor denominator = largest(square, kept).sqrt().div(correction).add_(eps);
    parameter.addcdiv_(average, denominator, -step_size);
  }

  void begin(const at::Tensor& parameter, Kept& kept) const {
    kept["step"] = at::zeros({}, at::kFloat);
    kept["exp_avg"] = at::zeros_like(parameter);
    kept["exp_avg_sq"] = at::zeros_like(parameter);
    if (amsgrad) kept["max_exp_avg_sq"] = at::zeros_like(parameter);
  }

  at::Tensor largest(const at::Tensor& square, Kept& kept) const {
    if (!amsgrad) return square;
    at::Tensor& most = kept.at("max_exp_avg_sq");
    return at::maximum_out(most, most, square);
  }

  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled, amsgrad, maximize;
};

void checkGradients(const NamedTensors& parameters) {
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.grad().defined()) continue;
    TORCH_CHECK(parameter.grad().layout() == at::kStrided && !parameter.is_complex(),
                "the optimizer of a worker without Python takes dense gradients of real numbers; '",
                name, "' has others");
  }
}

}  // namespace

void ScriptOptimizer::step(const std::string& kind, const Options& options) {
  TORCH_CHECK(kind == "sgd" || kind == "adam", "there is no optimizer of this kind: ", kind);
  checkGradients(parameters_);
  const at::NoGradGuard no_grad;
  const auto each = [this](const auto& change) {
    for (const auto& [name, parameter] : parameters_) {
      if (parameter.grad().defined()) change(parameter, state_[name]);
    }
  };
  if (kind == "sgd")
    each(Sgd(options));
  else
    each(Adam(options));
}

void ScriptOptimizer::load(State state) {
  for (const auto& [name, parameter] : parameters_) {
    const auto found = state.find(name);
    if (found == state.end()) continue;
    for (auto& [what, tensor] : found->second) {
      TORCH_CHECK(what == "step" || tensor.sizes() == parameter.sizes(), "the optimizer's '", what,
                  "' of ", name, " has the size ", tensor.sizes(), ", the parameter ",
                  parameter.sizes());
      // As torch.optim: of the parameter's kind, and not shared.
      tensor = what == "step" ? tensor.clone() : tensor.to(parameter.scalar_type()).clone();
    }
  }
  state_ = std::move(state);
}

}  // namespace weft::pipe
