#include "jit_ops/values/held_gradients.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace weft::ops {

bool holdsGradients(const at::IValue& value) {
  if (value.isTensor()) return value.toTensor().requires_grad();
  if (value.isTensorList()) {
    const auto tensors = value.toTensorVector();
    return std::any_of(tensors.begin(), tensors.end(),
                       [](const at::Tensor& one) { return one.requires_grad(); });
  }
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return std::any_of(elements.begin(), elements.end(), holdsGradients);
  }
  if (value.isList()) {
    const auto elements = value.toListRef();
    return std::any_of(elements.begin(), elements.end(), holdsGradients);
  }
  if (!value.isGenericDict()) return false;
  const auto dict = value.toGenericDict();
  return std::any_of(dict.begin(), dict.end(),
                     [](const auto& entry) { return holdsGradients(entry.value()); });
}

at::IValue withoutGradients(at::IValue value) {
  if (!holdsGradients(value)) return value;
  if (value.isTensor()) return value.toTensor().detach();
  if (value.isTuple()) {
    std::vector<at::IValue> elements = value.toTupleRef().elements().vec();
    for (at::IValue& element : elements)
      element = withoutGradients(std::move(element));
    const auto type = value.type()->cast<c10::TupleType>();
    return type->schema() ? c10::ivalue::Tuple::createNamed(std::move(elements), type)
                          : c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isList()) {
    const auto list = value.toList();
    c10::List<at::IValue> out(list.elementType());
    out.reserve(list.size());
    for (const at::IValue& element : list.vec())
      out.push_back(withoutGradients(element));
    return out;
  }
  const auto dict = value.toGenericDict();
  c10::Dict<at::IValue, at::IValue> out(dict.keyType(), dict.valueType());
  for (const auto& entry : dict)
    out.insert(entry.key(), withoutGradients(entry.value()));
  return out;
}

}  // namespace weft::ops
