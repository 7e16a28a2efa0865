// A partition that is TorchScript: it runs without Python, so that such stages overlap on the CPU.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <vector>

#include "pipe/stage/stage.h"

namespace weft::pipe {

// Turns Python's values in a batch into TorchScript's; throws where TorchScript has no type for
// one.
c10::IValue toIValue(const Batch& batch);
Batch toBatch(const c10::IValue& value);
// As a part of something larger.
Structure addPart(const c10::IValue& value, std::vector<at::Tensor>& tensors);

class WEFT_API ScriptStage final : public Stage {
 public:
  // Run one after the other; a tuple becomes the next one's arguments.
  explicit ScriptStage(std::vector<torch::jit::Module> modules);
  Batch forward(const Batch& input) override;
  std::vector<at::Tensor> parameters() override;

 private:
  std::vector<torch::jit::Module> modules_;
};

}  // namespace weft::pipe
