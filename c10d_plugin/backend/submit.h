// How WeftBackend's operations go to the engine; for the files that implement them.
#pragma once

#include <utility>

#include "c10d_plugin/backend/backend.h"
#include "c10d_plugin/engine/engine.h"
#include "c10d_plugin/tensors/reduce_op.h"

namespace weft::process_group {

// The Call of the next operation, on this tensor's elements.
inline collectives::Call callOn(const OpContext& context, const at::Tensor& tensor,
                                collectives::Reduction reduction = collectives::Reduction::kSum) {
  return context.call(elementOf(tensor.scalar_type()), reduction);
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

// The lists are made only where a Work is needed.
template <typename OpOptions, typename Inputs, typename Outputs, typename Run>
WeftBackend::WorkPtr WeftBackend::submit(c10d::OpType type, const char* title,
                                         const OpOptions& opts, const Inputs& inputs,
                                         const Outputs& outputs, Run&& run) {
  return comm_.engine().submit(
      {title, timeoutOr(opts.timeout), opts.asyncOp, this},
      [&] {
        return OpInfo{type, title, asList(inputs), asLists(outputs)};
      },
      std::forward<Run>(run));
}

}  // namespace weft::process_group
