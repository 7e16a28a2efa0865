#include "jit_ops/values/result_names.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

namespace weft::ops {

namespace {

constexpr const char* kNone = "null";

// Names of classes and fields are identifiers: nothing in them to escape.
std::string quoted(const std::string& text) { return '"' + text + '"'; }

std::string part(const c10::TypePtr& type);

std::string tuplePart(const c10::TupleType& tuple) {
  std::string parts;
  bool any = tuple.schema() != nullptr;
  for (const c10::TypePtr& element : tuple.elements()) {
    const std::string one = part(element);
    any = any || one != kNone;
    parts += (parts.empty() ? "" : ",") + one;
  }
  if (!any) return kNone;
  std::string name = kNone;
  std::string fields = kNone;
  if (tuple.schema() != nullptr && tuple.name().has_value()) {
    name = quoted(tuple.name()->qualifiedName());
    fields.clear();
    for (const c10::Argument& field : tuple.schema()->arguments())
      fields += (fields.empty() ? "" : ",") + quoted(field.name());
    fields = '[' + fields + ']';
  }
  return "[\"tuple\"," + name + ',' + fields + ",[" + parts + "]]";
}

std::string around(const char* kind, const c10::TypePtr& inner) {
  const std::string one = part(inner);
  return one == kNone ? kNone : "[" + quoted(kind) + ',' + one + ']';
}

std::string part(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TupleType:
      return tuplePart(type->expectRef<c10::TupleType>());
    case c10::TypeKind::ListType:
      return around("list", type->expectRef<c10::ListType>().getElementType());
    case c10::TypeKind::DictType:
      return around("dict", type->expectRef<c10::DictType>().getValueType());
    case c10::TypeKind::OptionalType:
      return around("optional", type->expectRef<c10::OptionalType>().getElementType());
    default:
      return kNone;
  }
}

}  // namespace

std::string namesIn(const c10::TypePtr& type) {
  std::string all = part(type);
  return all == kNone ? "" : all;
}

at::IValue besideNames(at::IValue value, const std::string& names) {
  return c10::ivalue::Tuple::create(at::IValue(kNamesMark), at::IValue(names), std::move(value));
}

std::optional<Named> takeNames(const at::IValue& answer) {
  if (!answer.isTuple()) return std::nullopt;
  const auto& parts = answer.toTupleRef().elements();
  if (parts.size() != 3 || !parts[0].isString() || !parts[1].isString() ||
      parts[0].toStringRef() != kNamesMark) {
    return std::nullopt;
  }
  return Named{parts[1].toStringRef(), parts[2]};
}

}  // namespace weft::ops
