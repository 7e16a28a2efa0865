#include "pipe/cell/gradient_accumulator.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

namespace weft::pipe {

namespace autograd = torch::autograd;

namespace {

// A gradient as it comes from autograd may be shared with another, and must not be added to then.
// A weight's is often a view (a transposed product, of nn.Linear) whose base only it holds.
bool isUnshared(const at::Tensor& grad) {
  if (grad.layout() != at::kStrided || at::isTensorSubclassLike(grad) || !grad.has_storage() ||
      !grad.is_non_overlapping_and_dense() || grad.use_count() != 1) {
    return false;
  }
  const bool is_view = !grad.is_inference() && grad.is_view();
  if (is_view && grad._base().use_count() != 1) return false;
  return grad.storage().use_count() == (is_view ? 2 : 1);
}

}  // namespace

void GradientSum::add(at::Tensor part) {
  if (!part.defined()) return;
  const at::NoGradGuard no_grad;
  if (!sum_.defined()) {
    owned_ = isUnshared(part);
    sum_ = std::move(part);
  } else if (owned_ && (!sum_.is_sparse() || part.is_sparse())) {
    sum_.add_(part);
  } else {
    // A sparse tensor can be added to a dense one, and not the other way round.
    sum_ = sum_.is_sparse() && !part.is_sparse() ? part + sum_ : sum_ + part;
    owned_ = true;
  }
}

GradientAccumulator::GradientAccumulator(const ParameterSet& parameters, const Wanted& wanted)
    : parameters_(parameters.all.size()), of_stage_(parameters.of_stage.size()) {
  bool before = std::find(wanted.inputs.begin(), wanted.inputs.end(), true) != wanted.inputs.end();
  for (const auto j : c10::irange(of_stage_.size())) {
    wants_inputs_.push_back(before);
    for (const std::size_t p : parameters.of_stage[j]) {
      if (!wanted.parameters[p]) continue;
      of_stage_[j].push_back(
          {p, parameters.stages_with[p] == 1 ? wanted.accumulators[p] : nullptr, {}});
      before = true;
    }
  }
}

void GradientAccumulator::appendEnds(std::size_t stage, const autograd::edge_list& all,
                                     autograd::edge_list& ends) const {
  for (const Entry& entry : of_stage_[stage])
    ends.push_back(all[entry.parameter]);
}

void GradientAccumulator::add(std::size_t stage, autograd::variable_list::iterator grads) {
  for (Entry& entry : of_stage_[stage])
    entry.sum.add(std::move(*grads++));
}

bool GradientAccumulator::addAt(std::size_t stage, const autograd::edge_list& all,
                                const autograd::Node* end, at::Tensor& grad) {
  for (Entry& entry : of_stage_[stage]) {
    if (all[entry.parameter].function.get() != end) continue;
    if (entry.accumulator == nullptr) {
      entry.sum.add(std::move(grad));
    } else {
      autograd::variable_list one;
      one.push_back(std::move(grad));
      (*entry.accumulator)(std::move(one));
    }
    return true;
  }
  return false;
}

std::vector<at::Tensor> GradientAccumulator::take() {
  std::vector<GradientSum> sums(parameters_);
  for (std::vector<Entry>& entries : of_stage_) {
    for (Entry& entry : entries)
      sums[entry.parameter].add(entry.sum.take());
  }
  std::vector<at::Tensor> result;
  result.reserve(parameters_);
  for (GradientSum& sum : sums)
    result.push_back(sum.take());
  return result;
}

}  // namespace weft::pipe
