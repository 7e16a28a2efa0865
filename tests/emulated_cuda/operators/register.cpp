// Puts the emulation's kernels in the place of torch's own for CUDA, when this library is loaded.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/library.h>

#include <tuple>

#include "tests/emulated_cuda/operators/fallback.h"

namespace emulated {
namespace {

// Whether a copy is one memcpy, which the runtime does itself.
bool isOneRange(const at::Tensor& to, const at::Tensor& from) {
  return to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
         to.strides() == from.strides() && to.is_non_overlapping_and_dense() &&
         to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
}

// Torch's own copy_ goes by memcpy between devices and the host, over contiguous tensors that it
// makes for the purpose; between other layouts and types of one device it launches a kernel.
void copy(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto inputs = torch::jit::last(*stack, 3);
  const auto to = inputs[0].toTensor();
  const auto from = inputs[1].toTensor();
  const bool non_blocking = inputs[2].toBool();
  const bool one_range = isOneRange(to, from);
  if (!one_range && to.device() == from.device()) return runOnHost(op, keys, stack);
  if (one_range || !to.is_cuda() || !from.is_cuda()) {
    at::native::copy_(const_cast<at::Tensor&>(to), from, non_blocking);
  } else {
    const auto there = from.to(to.scalar_type()).expand_as(to).contiguous();
    auto here = at::empty(to.sizes(), to.options());
    at::native::copy_(here, there, non_blocking);
    to.copy_(here);
  }
  torch::jit::drop(*stack, 3);
  stack->push_back(to);
}

// The CPU's native_dropout takes no generator.
std::tuple<at::Tensor, at::Tensor> nativeDropout(const at::Tensor& input, double p,
                                                 std::optional<bool> train) {
  auto mask = at::empty_like(input, input.options().dtype(at::kBool));
  if (train.has_value() && !*train) return {input.clone(), mask.fill_(true)};
  mask.bernoulli_(1 - p);
  return {input * mask * (p == 1 ? 0.0 : 1 / (1 - p)), mask};
}

// A sparse tensor is sorted by kernels of its own.
at::Tensor coalesce(const at::Tensor& self) { return self.cpu().coalesce().to(self.device()); }

// A fused kernel of CUDA's own has no form on the CPU: composites take its place.
void useComposites() {
  auto& context = at::globalContext();
  context.setUserEnabledCuDNN(false);
  context.setSDPUseFlash(false);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(false);
}

struct Quiet : c10::WarningHandler {  // "overriding a previously registered kernel"
  void process(const c10::Warning&) override {}
};

struct Registration {
  Registration()
      : library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__),
        sparse(torch::Library::IMPL, "aten", c10::DispatchKey::SparseCUDA, __FILE__, __LINE__) {
    Quiet quiet;
    auto* handler = c10::WarningUtils::get_warning_handler();
    c10::WarningUtils::set_warning_handler(&quiet);
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA)) {
      const auto op = dispatcher.findSchema(name);
      if (!op || !name.name.starts_with("aten::") || name.name == "aten::native_dropout") continue;
      if (canRunOnHost(*op)) add(name, torch::CppFunction::makeFromBoxedFunction<&runOnHost>());
    }
    add({"aten::copy_", ""}, torch::CppFunction::makeFromBoxedFunction<&copy>());
    library.impl("native_dropout", &nativeDropout);
    sparse.impl("_coalesce", &coalesce);
    c10::WarningUtils::set_warning_handler(handler);
    useComposites();
    // TorchScript's fuser makes kernels of its own, which nothing here could run.
    torch::jit::setTensorExprFuserEnabled(false);
  }

  void add(const c10::OperatorName& name, torch::CppFunction function) {
    const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(full.c_str(), std::move(function));
  }

  torch::Library library;
  torch::Library sparse;
};

// Never taken away: other static objects may still run operators when the process ends.
[[maybe_unused]] auto& registration = *new Registration;

}  // namespace
}  // namespace emulated
