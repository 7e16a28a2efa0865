#include "tests/emulated_cuda/operators/fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <optional>
#include <set>
#include <string>

#include "tests/emulated_cuda/operators/launch.h"

namespace emulated {
namespace {

using Values = torch::jit::Stack;

bool isOnDevice(const at::Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }

// The schema of batch_norm does not say that it writes to these.
bool isWritten(const c10::Argument& argument) {
  const auto* alias = argument.alias_info();
  return (alias != nullptr && alias->isWrite()) || argument.name() == "running_mean" ||
         argument.name() == "running_var";
}

std::optional<c10::DeviceIndex> deviceOf(const c10::IValue& value) {
  if (value.isTensor() && isOnDevice(value.toTensor())) return value.toTensor().get_device();
  if (value.isTensorList() || value.isList())
    for (const c10::IValue& item : value.toListRef())
      if (const auto found = deviceOf(item)) return found;
  if (value.isDevice() && value.toDevice().is_cuda()) return value.toDevice().index();
  return std::nullopt;
}

c10::DeviceIndex deviceOf(const Values& stack, std::size_t first) {
  for (auto at = first; at < stack.size(); ++at)
    if (const auto found = deviceOf(stack[at]); found && *found >= 0) return *found;
  return c10::cuda::current_device();
}

// The next numbers of a device's generator, as one of the CPU: a seed and a place in its sequence.
at::Generator drawFrom(const c10::IValue& given) {
  const auto optional = given.toOptional<at::Generator>();
  auto* generator = at::get_generator_or_default<at::CUDAGeneratorImpl>(
      optional, at::cuda::detail::getDefaultCUDAGenerator());
  const std::lock_guard lock(generator->mutex_);
  const auto [seed, offset] = generator->philox_engine_inputs(4);
  return at::detail::createCPUGenerator(seed * 0x9E3779B97F4A7C15ULL + offset);
}

// One call: its arguments for the CPU, and which tensor of the device each of them stands for.
class Call {
 public:
  Call(const c10::OperatorHandle& op, c10::DeviceIndex device)
      : op_(op), device_(device), launch_(device) {}

  c10::IValue argument(const c10::Argument& declared, const c10::IValue& given) {
    const bool written = isWritten(declared);
    if (given.isTensor()) {
      checkPlace(given.toTensor());
      return tensor(given.toTensor(), written);
    }
    if (given.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : given.toTensorVector())
        list.push_back(tensor(item, written));
      return list;
    }
    if (given.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& item : given.toOptionalTensorVector())
        list.push_back(item ? std::optional(tensor(*item, written)) : std::nullopt);
      return list;
    }
    if (given.isDevice() && given.toDevice().is_cuda()) return c10::Device(at::kCPU);
    if (declared.name() == "generator")
      return draws() ? c10::IValue(drawFrom(given)) : c10::IValue();
    return given;
  }

  c10::IValue result(const c10::IValue& made) {
    if (made.isTensor()) return onDevice(made.toTensor());
    if (!made.isTensorList()) return made;
    c10::List<at::Tensor> list;
    for (const at::Tensor& item : made.toTensorVector())
      list.push_back(onDevice(item));
    return list;
  }

  void run() {
    for (auto& [value, target] : written_) {
      if (value.sizes() != target.sizes()) target.resize_(value.sizes());
      launch_.writes(target, value);
    }
    launch_.run();
  }

 private:
  bool draws() const { return op_.hasTag(at::Tag::nondeterministic_seeded); }

  // A number may lie on the CPU.
  void checkPlace(const at::Tensor& given) {
    if (!given.defined() || given.dim() == 0) return;
    if (!device_of_first_) device_of_first_ = given.device();
    TORCH_CHECK(*device_of_first_ == given.device(), "Expected all tensors to be on the same ",
                "device, but found at least two devices, ", *device_of_first_, " and ",
                given.device(), "!");
  }

  // What is written to is a copy until the stream is there.
  at::Tensor tensor(const at::Tensor& given, bool written) {
    if (!isOnDevice(given)) return given;
    launch_.reads(given);
    auto host = written ? onHost(given).clone() : onHost(given);
    if (written)
      written_.emplace_back(host, given);
    else
      read_.emplace_back(host, given);
    return host;
  }

  at::Tensor onDevice(const at::Tensor& made) {
    if (!made.defined()) return made;
    for (const auto& known : {&written_, &read_})
      for (const auto& [host, given] : *known)
        if (host.is_same(made)) return given;
    auto target = at::empty_strided(made.sizes(), made.strides(),
                                    made.options().device(at::Device(at::kCUDA, device_)));
    launch_.writes(target, made.storage().nbytes() == 0 ? made : made.clone());
    return target;
  }

  const c10::OperatorHandle& op_;
  const c10::DeviceIndex device_;
  Launch launch_;
  std::optional<c10::Device> device_of_first_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;  // the CPU's, the device's
  std::vector<std::pair<at::Tensor, at::Tensor>> read_;
};

}  // namespace

void runOnHost(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU),
                              "emulated CUDA: ", op.operator_name(), " has no kernel for the CPU");
  const auto first = stack->size() - schema.arguments().size();
  const at::AutoDispatchBelowADInplaceOrView plain;
  const c10::cuda::CUDAGuard guard(deviceOf(*stack, first));
  Call call(op, guard.current_device().index());
  Values values;
  for (std::size_t at = 0; at < schema.arguments().size(); ++at)
    values.push_back(call.argument(schema.arguments()[at], (*stack)[first + at]));
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &values);
  stack->resize(first);
  for (const auto& value : values)
    stack->push_back(call.result(value));
  call.run();
}

bool canRunOnHost(const c10::OperatorHandle& op) {
  static const std::set<std::string> own{
      "aten::_local_scalar_dense", "aten::_pin_memory",     "aten::is_pinned",
      "aten::record_stream",       "aten::resize_",         "aten::set_",
      "aten::is_set_to",           "aten::_resize_output_",
  };
  const auto& schema = op.schema();
  if (own.contains(schema.name()) || schema.name().starts_with("aten::empty")) return false;
  for (const auto& returned : schema.returns())
    if (const auto* alias = returned.alias_info(); alias != nullptr && !alias->isWrite())
      return false;
  return true;
}

}  // namespace emulated
