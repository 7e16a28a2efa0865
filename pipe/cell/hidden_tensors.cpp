#include "pipe/cell/hidden_tensors.h"

#include <string>
#include <vector>

#include "pipe/cell/stage_traits.h"
#include "pipe/data/script_batch.h"

namespace weft::pipe {

namespace {

using Kind = Structure::Kind;

// Calls `visit` with each hidden tensor, and with the value that it is in.
void visitHidden(const Structure& structure, const auto& visit) {
  const c10::IValue& value = structure.value;
  for (const Structure& part : structure.parts)
    visitHidden(part, visit);
  if (structure.kind != Kind::kValue && structure.kind != Kind::kCustom) return;
  if (value.isPyObject()) {
    for (const at::Tensor& tensor : value.toPyObjectHolder()->extractTensors())
      visit(tensor, value);
  } else if (value.isObject()) {
    for (const c10::IValue& slot : value.toObjectRef().slots()) {
      std::vector<at::Tensor> tensors;
      const Structure inner = addPart(slot, tensors);
      for (const at::Tensor& tensor : tensors)
        visit(tensor, value);
      visitHidden(inner, visit);
    }
  }
}

std::string classOf(const c10::IValue& value) {
  return value.isPyObject() ? value.toPyObjectHolder()->toStr() : value.type()->str();
}

}  // namespace

void refuseHiddenGraphs(const Structure* structure, std::size_t stage) {
  if (structure == nullptr) return;
  visitHidden(*structure, [&](const at::Tensor& tensor, const c10::IValue& value) {
    // A leaf that the next stage uses is found there: see refuseUnregisteredLeaves.
    TORCH_CHECK_TYPE(
        !tensor.requires_grad() || tensor.is_leaf(), "stage ", stage,
        " gave a tensor that requires a gradient inside a value that is passed on whole, of class ",
        classOf(value),
        ". It would get no gradient: give it in a tuple, a list or a dictionary, register the "
        "object's class with torch.utils._pytree.register_pytree_node, or detach it.");
  });
}

bool mayHideGraph(const Structure* structure) {
  bool may = false;
  if (structure != nullptr) {
    visitHidden(*structure, [&](const at::Tensor& tensor, const c10::IValue& /*value*/) {
      may |= mayHaveGradient(tensor);
    });
  }
  return may;
}

}  // namespace weft::pipe
