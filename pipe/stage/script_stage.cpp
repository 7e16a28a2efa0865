#include "pipe/stage/script_stage.h"

#include <utility>

#include "pipe/data/script_batch.h"

namespace weft::pipe {

ScriptStage::ScriptStage(std::vector<torch::jit::Module> modules) : modules_(std::move(modules)) {}

Batch ScriptStage::forward(const Batch& input) {
  c10::IValue value = toIValue(input);
  bool spread = value.isTuple();
  if (input.structure && input.structure->kind == Structure::Kind::kList) {
    const c10::impl::GenericList list = value.toList();
    value = c10::ivalue::Tuple::create(std::vector<c10::IValue>(list.begin(), list.end()));
    spread = true;
  }
  for (torch::jit::Module& module : modules_) {
    value = spread ? module.forward(value.toTupleRef().elements().vec())
                   : module.forward({std::move(value)});
    spread = value.isTuple();
  }
  return toBatch(value);
}

std::vector<at::Tensor> ScriptStage::parametersAndBuffers() {
  std::vector<at::Tensor> found;
  for (const torch::jit::Module& module : modules_) {
    for (const at::Tensor& tensor : module.parameters())
      found.push_back(tensor);
    for (const at::Tensor& tensor : module.buffers())
      found.push_back(tensor);
  }
  return found;
}

}  // namespace weft::pipe
