// A partition that is TorchScript: it runs without Python, so that such stages overlap on the CPU.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <vector>

#include "pipe/stage/stage.h"

namespace weft::pipe {

class WEFT_API ScriptStage final : public Stage {
 public:
  // Run one after the other; a tuple becomes the next one's arguments.
  explicit ScriptStage(std::vector<torch::jit::Module> modules);
  Batch forward(const Batch& input) override;
  std::vector<at::Tensor> parametersAndBuffers() override;

 private:
  std::vector<torch::jit::Module> modules_;
};

}  // namespace weft::pipe
