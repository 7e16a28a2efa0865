#include "pipe/cell/cell_input.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

#include "pipe/cell/gradient_boundary.h"
#include "pipe/data/device_copier.h"
#include "pipe/data/memory.h"

namespace weft::pipe {

bool CellInput::anyDifferentiable() const {
  return std::any_of(input_.values.begin(), input_.values.end(),
                     [](const Activation& value) { return value.differentiable; });
}

std::vector<at::Tensor> CellInput::alias(CellPass pass) {
  const InputTrait trait = context_->pipeline.traits[stage_].input();
  const bool with_graph =
      pass != CellPass::kCheckpoint && context_->grad && at::GradMode::is_enabled();
  auto node = makeNode<IdentityNode>();
  slots_.assign(input_.values.size(), -1);
  std::vector<at::Tensor> given;
  given.reserve(input_.values.size());
  std::int64_t slots = 0;
  for (const auto k : c10::irange(input_.values.size())) {
    const Activation& input = input_.values[k];
    std::size_t first = 0;
    while (!input_.values[first].value.is_same(input.value))
      ++first;
    if (first < k) {
      at::Tensor same = given[first];
      given.push_back(std::move(same));
      continue;
    }
    const bool copy =
        trait != InputTrait::kReads && input.value.defined() && isNeededAgain(pass, input);
    at::Tensor value = copy ? input.value.detach().clone() : input.value;
    if (with_graph && input.differentiable) {
      slots_[k] = slots++;
      given.push_back(aliasBehind(value, node));
    } else {
      given.push_back(value.defined() && !copy ? value.detach() : std::move(value));
      // The stage may ask whether it requires a gradient, which it does in the recomputation.
      if (pass == CellPass::kCheckpoint && input.differentiable)
        given.back().set_requires_grad(true);
    }
  }
  node_ = slots == 0 ? NodePtr() : NodePtr(std::move(node));
  return given;
}

// Whether an input is needed as it was: by the cell's own recomputation, which may run once more
// (retain_graph) and needs the same input then, or, if it is the mini-batch's, by the caller and
// the other micro-batches. A stage that changes such an input, or might, gets a copy. So does one
// that is refused because its input has an alias, which may be the caller's.
bool CellInput::isNeededAgain(CellPass pass, const Activation& input) const {
  return pass != CellPass::kGraph || input.sharing == Sharing::kMiniBatch ||
         (context_->grad && input.sharing == Sharing::kAliased);
}

void CellInput::learnFrom(CellPass pass, const std::vector<at::Tensor>& given,
                          const std::vector<std::uint32_t>& versions) const {
  bool watched = false;
  bool written = false;
  for (const auto k : c10::irange(given.size())) {
    if (!isNeededAgain(pass, input_.values[k])) continue;
    watched = true;
    written |= versionOf(given[k]) != versions[k];
  }
  if (watched) context_->pipeline.traits[stage_].learnInput(written, stage_);
}

void CellInput::noteVersions() {
  versions_.clear();
  for (const Activation& value : input_.values)
    versions_.push_back(versionOf(value.value));
}

void CellInput::checkVersions() const {
  for (const auto k : c10::irange(input_.values.size())) {
    TORCH_CHECK(versionOf(input_.values[k].value) == versions_[k],
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: an input of stage ",
                stage_,
                " of a Pipe, which has to run again for the backward. Clone the input, or call "
                "backward() before it is changed.");
    keepForCurrentStream(input_.values[k].value);  // the forward may have run on another
  }
}

void CellInput::dropValues() {
  input_.values.clear();
  input_.structure = nullptr;
}

void CellInput::drop() {
  input_ = {};
  dropNode();
}

}  // namespace weft::pipe
