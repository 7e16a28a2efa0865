#include "pipe/data/script_batch.h"

#include <ATen/core/Dict.h>

namespace weft::pipe {

namespace {

using Kind = Structure::Kind;

c10::IValue plain(const c10::IValue& value) {
  if (!value.isPyObject()) return value;
  const auto& holder = value.toPyObjectHolder();
  const c10::InferredType type = holder->tryToInferType();
  TORCH_CHECK(type.success(), "a TorchScript stage cannot take this value: ", type.reason());
  return holder->toIValue(type.type());
}

c10::IValue build(const Structure& structure, const std::vector<at::Tensor>& tensors,
                  std::size_t& next) {
  if (structure.kind == Kind::kTensor) return tensors.at(next++);
  if (structure.kind == Kind::kValue) return plain(structure.value);
  std::vector<c10::IValue> parts;
  for (const Structure& part : structure.parts)
    parts.push_back(build(part, tensors, next));
  if (structure.kind == Kind::kTuple) return c10::ivalue::Tuple::create(std::move(parts));
  TORCH_CHECK(structure.kind == Kind::kList || structure.kind == Kind::kDict,
              "a TorchScript stage cannot take a container of this type");
  TORCH_CHECK(!parts.empty(), "a TorchScript stage cannot take an empty container: it has no type");
  const c10::TypePtr type =
      c10::unshapedType(parts[0].type());  // a tensor's type includes its shape
  if (structure.kind == Kind::kList) {
    c10::impl::GenericList list(type);
    for (c10::IValue& part : parts)
      list.push_back(std::move(part));
    return list;
  }
  const c10::IValue keys = plain(structure.value);
  const auto names = keys.toListRef();
  c10::impl::GenericDict dict(names[0].type(), type);
  for (std::size_t k = 0; k < parts.size(); ++k)
    dict.insert(names[k], std::move(parts[k]));
  return dict;
}

}  // namespace

Structure addPart(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  Structure structure;
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTuple()) {
    structure.kind = Kind::kTuple;
    for (const c10::IValue& item : value.toTupleRef().elements()) {
      structure.parts.push_back(addPart(item, tensors));
    }
  } else if (value.isList()) {
    structure.kind = Kind::kList;
    const c10::impl::GenericList list = value.toList();
    for (const c10::IValue& item : list)
      structure.parts.push_back(addPart(item, tensors));
  } else if (value.isGenericDict()) {
    structure.kind = Kind::kDict;
    const auto dict = value.toGenericDict();
    c10::impl::GenericList keys(dict.keyType());
    for (const auto& item : dict) {
      keys.push_back(item.key());
      structure.parts.push_back(addPart(item.value(), tensors));
    }
    structure.value = keys;
  } else {
    structure.kind = Kind::kValue;
    structure.value = value;
  }
  return structure;
}

c10::IValue toIValue(const Batch& batch) {
  std::size_t next = 0;
  return build(structureOf(batch), batch.tensors, next);
}

Batch toBatch(const c10::IValue& value) {
  Batch batch;
  batch.structure = shared(addPart(value, batch.tensors));
  return batch;
}

}  // namespace weft::pipe
