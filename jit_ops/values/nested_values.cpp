#include "jit_ops/values/nested_values.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft::ops {

namespace {

using c10::TypePtr;
using Change = at::IValue (*)(at::IValue);

at::IValue changedTuple(const at::IValue& value, const c10::TupleTypePtr& named, Change change) {
  std::vector<at::IValue> elements = value.toTupleRef().elements().vec();
  for (at::IValue& element : elements)
    element = change(std::move(element));
  return named ? c10::ivalue::Tuple::createNamed(std::move(elements), named)
               : c10::ivalue::Tuple::create(std::move(elements));
}

at::IValue changedList(const c10::List<at::IValue>& list, const TypePtr& type, Change change) {
  c10::List<at::IValue> out(type);
  out.reserve(list.size());
  for (const at::IValue& element : list.vec())
    out.push_back(change(element));
  return out;
}

at::IValue changedDict(const c10::Dict<at::IValue, at::IValue>& dict, const TypePtr& type,
                       Change change) {
  c10::Dict<at::IValue, at::IValue> out(dict.keyType(), type);
  for (const auto& entry : dict)
    out.insert(entry.key(), change(entry.value()));
  return out;
}

bool mayHoldNames(const TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::AnyType:
      return true;
    case c10::TypeKind::ClassType:  // may hold itself, and travels in no message
    case c10::TypeKind::EnumType:
    case c10::TypeKind::InterfaceType:
      return false;
    case c10::TypeKind::TupleType:
      if (type->expectRef<c10::TupleType>().schema() != nullptr) return true;
      [[fallthrough]];
    default:
      return std::ranges::any_of(type->containedTypes(), mayHoldNames);
  }
}

// Whether `is` says so of a tensor in the value.
template <typename Predicate>
bool anyTensor(const at::IValue& value, Predicate is) {
  bool found = false;
  value.visit([&](const at::IValue& part) {
    found = found || (part.isTensor() && is(part.toTensor()));
    return found;
  });
  return found;
}

}  // namespace

bool requiresGrad(const at::IValue& value) {
  return anyTensor(value, [](const at::Tensor& tensor) { return tensor.requires_grad(); });
}

at::IValue detached(at::IValue value) {
  if (value.isFuture()) {
    const auto made = value.toFuture();
    return made->then([](c10::ivalue::Future& done) { return detached(done.value()); },
                      made->elementType());
  }
  if (!requiresGrad(value)) return value;
  if (value.isTensor()) return value.toTensor().detach();
  if (value.isTuple()) {
    const auto type = value.type()->expect<c10::TupleType>();
    return changedTuple(value, type->schema() ? type : nullptr, detached);
  }
  if (value.isList()) {
    const auto list = value.toList();
    return changedList(list, list.elementType(), detached);
  }
  if (!value.isGenericDict()) return value;
  const auto dict = value.toGenericDict();
  return changedDict(dict, dict.valueType(), detached);
}

TypePtr withoutNames(const TypePtr& type) {
  if (type->containedTypes().empty() || !mayHoldNames(type)) return type;
  std::vector<TypePtr> contained;
  for (const TypePtr& one : type->containedTypes())
    contained.push_back(withoutNames(one));
  if (type->kind() == c10::TypeKind::TupleType) return c10::TupleType::create(std::move(contained));
  return type->withContained(std::move(contained));
}

at::IValue withoutNames(at::IValue value) {
  if (value.isTuple()) return changedTuple(value, nullptr, withoutNames);
  if (value.isList()) {
    const auto list = value.toList();
    const TypePtr type = list.elementType();
    return mayHoldNames(type) ? changedList(list, withoutNames(type), withoutNames) : value;
  }
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    const TypePtr type = dict.valueType();
    return mayHoldNames(type) ? changedDict(dict, withoutNames(type), withoutNames) : value;
  }
  return value;
}

}  // namespace weft::ops
