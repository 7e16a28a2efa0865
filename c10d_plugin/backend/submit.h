// What the files that implement WeftBackend's operations share: how they give one to the engine,
// and the parts of one that several use, which throw what goes wrong.
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

// all_gather and reduce_scatter of one large tensor in equal parts, one for each rank: alone, or as
// a part of a coalesced call (collective_ops.cpp).
// `output` has room for every rank's `input`, in the order of the ranks; they may overlap.
void gatherParts(OpContext& context, const at::Tensor& output, const at::Tensor& input);
// `output`: this rank's part of the sum, or what `how` says, of all ranks' `input`; they may
// overlap.
void reduceParts(OpContext& context, const at::Tensor& output, const at::Tensor& input,
                 const TensorReduction& how);

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
