#include "jit_ops/values/coerce.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

namespace weft::ops {

namespace {

using c10::TypeKind;
using c10::TypePtr;

bool fitFloat(at::IValue& value) {
  if (value.isInt()) value = static_cast<double>(value.toInt());
  return value.isDouble();
}

bool fitTuple(at::IValue& value, const TypePtr& type) {
  if (!value.isTuple()) return false;
  const auto& wanted = type->expectRef<c10::TupleType>();
  std::vector<at::IValue> elements = value.toTupleRef().elements().vec();
  if (elements.size() != wanted.elements().size()) return false;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (!coerce(elements[i], wanted.elements()[i])) return false;
  }
  value = wanted.schema() ? c10::ivalue::Tuple::createNamed(std::move(elements), type)
                          : c10::ivalue::Tuple::create(std::move(elements));
  return true;
}

bool fitList(at::IValue& value, const c10::ListType& type) {
  const TypePtr element = type.getElementType();
  c10::List<at::IValue> out(element);
  std::vector<at::IValue> from;
  if (value.isTuple()) {  // Python's (1, 2) where a list is wanted
    from = value.toTupleRef().elements().vec();
  } else if (value.isList()) {
    const auto list = value.toList();
    if (*list.elementType() == *element) return true;
    from = list.vec();
  } else {
    return false;
  }
  out.reserve(from.size());
  for (at::IValue& one : from) {
    if (!coerce(one, element)) return false;
    out.push_back(std::move(one));
  }
  value = std::move(out);
  return true;
}

bool fitDict(at::IValue& value, const c10::DictType& type) {
  if (!value.isGenericDict()) return false;
  const auto dict = value.toGenericDict();
  const TypePtr key_type = type.getKeyType();
  const TypePtr value_type = type.getValueType();
  if (*dict.keyType() == *key_type && *dict.valueType() == *value_type) return true;
  c10::Dict<at::IValue, at::IValue> out(key_type, value_type);
  for (const auto& entry : dict) {
    at::IValue key = entry.key();
    at::IValue content = entry.value();
    if (!coerce(key, key_type) || !coerce(content, value_type)) return false;
    out.insert(std::move(key), std::move(content));
  }
  value = std::move(out);
  return true;
}

bool fitUnion(at::IValue& value, const c10::UnionType& type) {
  const auto types = type.containedTypes();
  // Exactly first: 1 stays an int in Union[float, int].
  for (const TypePtr& one : types) {
    if (value.type()->isSubtypeOf(*one)) return true;
  }
  return std::any_of(types.begin(), types.end(), [&](const TypePtr& one) {
    at::IValue copy = value;
    if (!coerce(copy, one)) return false;
    value = std::move(copy);
    return true;
  });
}

std::string described(const at::IValue& value) {
  if (value.isTuple() && value.toTupleRef().elements().empty()) return "()";
  return value.type()->annotation_str();
}

}  // namespace

bool coerce(at::IValue& value, const TypePtr& type) {
  switch (type->kind()) {
    case TypeKind::AnyType:
      return true;
    case TypeKind::TensorType:
      return value.isTensor();
    case TypeKind::NumberType:
      return value.isScalar();
    case TypeKind::FloatType:
      return fitFloat(value);
    case TypeKind::OptionalType:
      return value.isNone() || coerce(value, type->expectRef<c10::OptionalType>().getElementType());
    case TypeKind::UnionType:
      return fitUnion(value, type->expectRef<c10::UnionType>());
    case TypeKind::TupleType:
      return fitTuple(value, type);
    case TypeKind::ListType:
      return fitList(value, type->expectRef<c10::ListType>());
    case TypeKind::DictType:
      return fitDict(value, type->expectRef<c10::DictType>());
    case TypeKind::RRefType:
      return value.isRRef();
    default:
      return value.type()->isSubtypeOf(*type);
  }
}

std::vector<at::IValue> bindArguments(const c10::FunctionSchema& schema,
                                      std::vector<at::IValue> args,
                                      const std::vector<std::string>& names) {
  const auto& wanted = schema.arguments();
  TORCH_CHECK(names.size() <= args.size(), "more names than arguments");
  const std::size_t positional = args.size() - names.size();
  TORCH_CHECK(positional <= wanted.size(), schema, " takes at most ", wanted.size(),
              " arguments, got ", positional);
  std::vector<std::optional<at::IValue>> given(wanted.size());
  for (std::size_t i = 0; i < positional; ++i)
    given[i] = std::move(args[i]);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto at = schema.argumentIndexWithName(names[i]);
    TORCH_CHECK(at.has_value(), schema, " has no argument '", names[i], "'");
    auto& place = given[static_cast<std::size_t>(*at)];
    TORCH_CHECK(!place.has_value(), schema, ": argument '", names[i], "' is given twice");
    place = std::move(args[positional + i]);
  }
  std::vector<at::IValue> out;
  out.reserve(wanted.size() + 1);  // a method's self goes in front
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!given[i].has_value()) {
      TORCH_CHECK(wanted[i].default_value().has_value(), schema, ": argument '", wanted[i].name(),
                  "' is missing");
      out.push_back(*wanted[i].default_value());
      continue;
    }
    TORCH_CHECK(coerce(*given[i], wanted[i].type()), schema, ": argument '", wanted[i].name(),
                "' must be ", wanted[i].type()->annotation_str(), ", got ", described(*given[i]));
    out.push_back(std::move(*given[i]));
  }
  return out;
}

}  // namespace weft::ops
