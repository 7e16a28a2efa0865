// Tensors that are views with a conjugate or a negative bit.
//
// torch calls an operator with copies of such tensors unless it registers something else for them;
// of process groups' operators, what is written to the copies is lost. Weft's groups take the
// tensors as they are (contiguous_tensor.h). Other groups' calls go on as torch makes them.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

#include "c10d_plugin/backend/backend.h"

namespace weft::process_group {

namespace {

using c10::DispatchKey;
using torch::jit::Stack;

bool isWeftOnCpu(const c10::IValue& value) {
  if (!value.isObject() ||
      *value.type() != *c10::getCustomClassType<c10::intrusive_ptr<c10d::ProcessGroup>>()) {
    return false;
  }
  const auto group = value.toCustomClass<c10d::ProcessGroup>();
  try {
    // By its name, which the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL gives as well.
    return group->getBackend(c10::DeviceType::CPU)->getBackendName() == kBackendName;
  } catch (const c10::Error&) {
    return false;  // it has none for the CPU
  }
}

at::Tensor resolved(const at::Tensor& tensor) { return tensor.resolve_conj().resolve_neg(); }

void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto begin = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  const bool takes_bits = keys.has_backend(c10::BackendComponent::CPUBit) &&
                          std::any_of(begin, stack->end(), isWeftOnCpu);
  if (!takes_bits) {
    for (auto value = begin; value != stack->end(); ++value) {
      if (value->isTensor()) {
        *value = resolved(value->toTensor());
      } else if (value->isTensorList()) {
        c10::List<at::Tensor> tensors;
        for (const at::Tensor& tensor : value->toTensorVector())
          tensors.push_back(resolved(tensor));
        *value = std::move(tensors);
      }
    }
  }
  op.redispatchBoxed(keys.remove(DispatchKey::Conjugate).remove(DispatchKey::Negative), stack);
}

void registerAll(torch::Library& library) {
  for (const char* name :
       {"allgather_", "_allgather_base_", "allgather_coalesced_",
        "allgather_into_tensor_coalesced_", "allreduce_", "allreduce_coalesced_", "alltoall_",
        "alltoall_base_", "broadcast_", "gather_", "recv_", "recv_any_source_", "reduce_",
        "_reduce_scatter_base_", "reduce_scatter_", "reduce_scatter_tensor_coalesced_", "scatter_",
        "send"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&call>());
  }
}

TORCH_LIBRARY_IMPL(c10d, Conjugate, library) { registerAll(library); }
TORCH_LIBRARY_IMPL(c10d, Negative, library) { registerAll(library); }

}  // namespace

}  // namespace weft::process_group
