// Any operator of ATen on an emulated device, by its kernel for the CPU.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

namespace emulated {

// A boxed kernel. Random operators draw from the device's generator, so that its seed and state
// decide what they give. Raises where the CPU has no such operator.
void runOnHost(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Whether runOnHost() may take the operator's place: it makes new tensors or writes to some, and
// neither gives views nor manages memory.
bool canRunOnHost(const c10::OperatorHandle& op);

}  // namespace emulated
