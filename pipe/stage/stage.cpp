#include "pipe/stage/stage.h"

#include <c10/util/irange.h>

namespace weft::pipe {

std::shared_ptr<StageTensors> Stage::tensors() {
  return std::make_shared<StageTensors>(parametersAndBuffers());
}

Batch Stage::forwardAgain(const Batch& input, const StageTensors& then) {
  const std::vector<at::Tensor> now = parametersAndBuffers();
  bool same = now.size() == then.tensors.size();
  for (const auto k : c10::irange(same ? now.size() : 0)) {
    same &= now[k].is_same(then.tensors[k]) || !then.tensors[k].requires_grad();
  }
  TORCH_CHECK(same,
              "a stage that is not a Python module has other parameters than in its forward, and "
              "has to run again for the backward. Replace parameters after the backward.");
  return forward(input);
}

}  // namespace weft::pipe
