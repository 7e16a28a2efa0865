#include "pipe/cell/parameter_set.h"

#include <c10/util/irange.h>

#include <unordered_map>

#include "pipe/data/memory.h"

namespace weft::pipe {

ParameterSet::ParameterSet(const std::vector<std::shared_ptr<StageTensors>>& tensors,
                           std::size_t stages)
    : of_stage(stages) {
  std::unordered_map<c10::TensorImpl*, std::size_t> place_of;
  for (const auto j : c10::irange(tensors.size())) {
    for (const at::Tensor& tensor : tensors[j]->tensors) {
      if (!tensor.requires_grad()) continue;
      const auto [it, is_new] = place_of.emplace(tensor.unsafeGetTensorImpl(), all.size());
      of_stage[j].push_back(it->second);
      if (is_new) {
        all.push_back(tensor);
        stages_with.push_back(0);
      }
      ++stages_with[it->second];
    }
  }
}

void ParameterSet::noteVersions() { versions_ = versionsOf(all); }

void ParameterSet::checkVersions() const {
  for (const auto p : c10::irange(all.size())) {
    const std::uint32_t now = versionOf(all[p]);
    TORCH_CHECK(now == versions_[p],
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: a parameter of shape ",
                all[p].sizes(), " of a Pipe is at version ", now,
                ", and its stage, which "
                "has to run again for the backward, ran with version ",
                versions_[p], ". Call backward() before the parameters are changed.");
  }
}

}  // namespace weft::pipe
