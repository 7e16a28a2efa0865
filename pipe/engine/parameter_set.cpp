#include "pipe/engine/parameter_set.h"

#include <c10/util/irange.h>

#include <unordered_map>

#include "pipe/cell/activation.h"

namespace weft::pipe {

ParameterSet::ParameterSet(const std::vector<std::shared_ptr<StageTensors>>& tensors,
                           std::size_t stages)
    : of_stage_(stages) {
  std::unordered_map<c10::TensorImpl*, std::size_t> place_of;
  for (const auto j : c10::irange(tensors.size())) {
    for (const at::Tensor& tensor : tensors[j]->tensors) {
      if (!tensor.requires_grad()) continue;
      const auto [it, is_new] = place_of.emplace(tensor.unsafeGetTensorImpl(), parameters_.size());
      of_stage_[j].push_back(it->second);
      if (is_new) {
        parameters_.push_back(tensor);
        stages_with_.push_back(0);
      }
      ++stages_with_[it->second];
    }
  }
}

std::vector<torch::autograd::edge_list> ParameterSet::edgesPerStage(
    const GradientBoundary& boundary) const {
  std::vector<torch::autograd::edge_list> edges(of_stage_.size());
  for (const auto j : c10::irange(of_stage_.size())) {
    for (const std::size_t place : of_stage_[j])
      edges[j].push_back(boundary.edges()[place]);
  }
  return edges;
}

void ParameterSet::noteVersions() { versions_ = versionsOf(parameters_); }

void ParameterSet::checkVersions() const {
  for (const auto p : c10::irange(parameters_.size())) {
    const std::uint32_t now = versionOf(parameters_[p]);
    TORCH_CHECK(now == versions_[p],
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: a parameter of shape ",
                parameters_[p].sizes(), " of a Pipe is at version ", now,
                ", and its stage, which "
                "has to run again for the backward, ran with version ",
                versions_[p], ". Call backward() before the parameters are changed.");
  }
}

}  // namespace weft::pipe
