// How WeftBackend gives its operations to the engine; for the files that implement them.
#pragma once

#include <utility>

#include "c10d_plugin/backend/backend.h"
#include "c10d_plugin/engine/engine.h"
#include "c10d_plugin/tensors/reduce_op.h"

namespace weft::process_group {

// The Call of the next operation if it only moves this tensor's elements.
inline collectives::Call nextCallOn(OpContext& context, const at::Tensor& tensor) {
  static_assert(static_cast<int>(c10::ScalarType::NumOptions) <= 128, "Call::variant has 7 bits");
  const c10::ScalarType type = tensor.scalar_type();
  const collectives::Element element = elementOf(type);
  const bool moved = element == collectives::Element::kBytes;
  return context.nextCall(element, collectives::Reduction::kSum,
                          moved ? static_cast<std::uint8_t>(type) : 0);
}
// The Call of the next operation if it reduces them.
inline collectives::Call nextCallOn(OpContext& context, const at::Tensor& tensor,
                                    const TensorReduction& how) {
  return context.nextCall(elementOf(tensor.scalar_type()), how.reduction,
                          how.factor.defined() ? 1 : 0);
}

inline std::vector<at::Tensor> asList(const at::Tensor& tensor) { return {tensor}; }
inline const std::vector<at::Tensor>& asList(const std::vector<at::Tensor>& list) { return list; }

template <typename TensorOrList>
std::vector<std::vector<at::Tensor>> asLists(const TensorOrList& outputs) {
  return {asList(outputs)};
}
inline const std::vector<std::vector<at::Tensor>>& asLists(
    const std::vector<std::vector<at::Tensor>>& lists) {
  return lists;
}

// Makes the lists of tensors only if a Work is needed.
template <typename OpOptions, typename Inputs, typename Outputs, typename Run>
WeftBackend::WorkPtr WeftBackend::submit(c10d::OpType type, const char* title,
                                         const OpOptions& opts, const Inputs& inputs,
                                         const Outputs& outputs, Run&& run) {
  return comm_->engine().submit(
      {title, timeoutOr(opts.timeout), opts.asyncOp, this},
      [&] {
        return OpInfo{type, title, asList(inputs), asLists(outputs)};
      },
      std::forward<Run>(run));
}

}  // namespace weft::process_group
