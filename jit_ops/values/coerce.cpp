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

bool fit(at::IValue& value, const TypePtr& type, Numbers numbers);

bool fitFloat(at::IValue& value, Numbers numbers) {
  if (value.isInt() && numbers != Numbers::kKept) value = static_cast<double>(value.toInt());
  return value.isDouble();
}

bool fitComplex(at::IValue& value, Numbers numbers) {
  if (numbers == Numbers::kConverted && fitFloat(value, numbers))
    value = c10::complex<double>(value.toDouble());
  return value.isComplexDouble();
}

bool fitTuple(at::IValue& value, const TypePtr& type, Numbers numbers) {
  if (!value.isTuple()) return false;
  const auto& wanted = type->expectRef<c10::TupleType>();
  std::vector<at::IValue> elements = value.toTupleRef().elements().vec();
  if (elements.size() != wanted.elements().size()) return false;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (!fit(elements[i], wanted.elements()[i], numbers)) return false;
  }
  value = wanted.schema() ? c10::ivalue::Tuple::createNamed(std::move(elements), type)
                          : c10::ivalue::Tuple::create(std::move(elements));
  return true;
}

// Whether elements of the one type need no change for the other. Anything may need some.
bool hasType(const TypePtr& given, const TypePtr& wanted) {
  return *given == *wanted && wanted->kind() != TypeKind::AnyType;
}

bool fitList(at::IValue& value, const c10::ListType& type, Numbers numbers) {
  const TypePtr element = type.getElementType();
  c10::List<at::IValue> out(element);
  std::vector<at::IValue> from;
  if (value.isTuple()) {  // Python's (1, 2) where a list is wanted
    from = value.toTupleRef().elements().vec();
  } else if (value.isList()) {
    const auto list = value.toList();
    if (hasType(list.elementType(), element)) return true;
    from = list.vec();
  } else {
    return false;
  }
  out.reserve(from.size());
  for (at::IValue& one : from) {
    if (!fit(one, element, numbers)) return false;
    out.push_back(std::move(one));
  }
  value = std::move(out);
  return true;
}

bool fitDict(at::IValue& value, const c10::DictType& type, Numbers numbers) {
  if (!value.isGenericDict()) return false;
  const auto dict = value.toGenericDict();
  const TypePtr key_type = type.getKeyType();
  const TypePtr value_type = type.getValueType();
  if (*dict.keyType() == *key_type && hasType(dict.valueType(), value_type)) return true;
  c10::Dict<at::IValue, at::IValue> out(key_type, value_type);
  for (const auto& entry : dict) {
    at::IValue key = entry.key();
    at::IValue content = entry.value();
    if (!fit(key, key_type, numbers) || !fit(content, value_type, numbers)) return false;
    out.insert(std::move(key), std::move(content));
  }
  value = std::move(out);
  return true;
}

// The first alternative that the value fits as it is, else the first that takes its numbers: 1
// stays an int in Union[float, int], and [1] a List[int] in Union[List[float], List[int]].
bool fitUnion(at::IValue& value, const c10::UnionType& type, Numbers numbers) {
  const auto types = type.containedTypes();
  for (const TypePtr& one : types) {
    if (value.type()->isSubtypeOf(*one)) return true;
  }
  for (const Numbers how : {Numbers::kKept, Numbers::kReal, Numbers::kConverted}) {
    if (how > numbers) return false;
    for (const TypePtr& one : types) {
      at::IValue copy = value;
      if (!fit(copy, one, how)) continue;
      value = std::move(copy);
      return true;
    }
  }
  return false;
}

// The type that all of them have; null if they differ, or there are none.
TypePtr commonType(const std::vector<at::IValue>& values) {
  TypePtr common;
  for (const at::IValue& value : values) {
    const TypePtr type = c10::unshapedType(value.type());
    if (common != nullptr && *type != *common) return nullptr;
    common = type;
  }
  return common;
}

void tighten(at::IValue& value);

void tightenList(at::IValue& value) {
  const auto list = value.toList();
  if (list.elementType()->kind() != TypeKind::AnyType) return;
  std::vector<at::IValue> elements = list.vec();
  std::for_each(elements.begin(), elements.end(), tighten);
  const TypePtr type = commonType(elements);
  if (type == nullptr) return;
  c10::List<at::IValue> out(type);
  out.reserve(elements.size());
  for (at::IValue& element : elements)
    out.push_back(std::move(element));
  value = std::move(out);
}

void tightenDict(at::IValue& value) {
  const auto dict = value.toGenericDict();
  if (dict.valueType()->kind() != TypeKind::AnyType) return;
  std::vector<at::IValue> contents;
  for (const auto& entry : dict) {
    contents.push_back(entry.value());
    tighten(contents.back());
  }
  const TypePtr type = commonType(contents);
  if (type == nullptr) return;
  c10::Dict<at::IValue, at::IValue> out(dict.keyType(), type);
  auto content = contents.begin();
  for (const auto& entry : dict)
    out.insert(entry.key(), std::move(*content++));
  value = std::move(out);
}

// Gives lists and dicts of Any the type that TorchScript infers for them where it is called from
// Python. Those of different things stay.
void tighten(at::IValue& value) {
  if (value.isList()) {
    tightenList(value);
  } else if (value.isGenericDict()) {
    tightenDict(value);
  } else if (value.isTuple() && value.type()->expectRef<c10::TupleType>().schema() == nullptr) {
    std::vector<at::IValue> elements = value.toTupleRef().elements().vec();
    std::for_each(elements.begin(), elements.end(), tighten);
    value = c10::ivalue::Tuple::create(std::move(elements));
  }
}

bool fit(at::IValue& value, const TypePtr& type, Numbers numbers) {
  switch (type->kind()) {
    case TypeKind::AnyType:
      tighten(value);
      return true;
    case TypeKind::TensorType:
      return value.isTensor();
    case TypeKind::NumberType:
      return value.isScalar();
    case TypeKind::FloatType:
      return fitFloat(value, numbers);
    case TypeKind::ComplexType:
      return fitComplex(value, numbers);
    case TypeKind::OptionalType:
      return value.isNone() ||
             fit(value, type->expectRef<c10::OptionalType>().getElementType(), numbers);
    case TypeKind::UnionType:
      return fitUnion(value, type->expectRef<c10::UnionType>(), numbers);
    case TypeKind::TupleType:
      return fitTuple(value, type, numbers);
    case TypeKind::ListType:
      return fitList(value, type->expectRef<c10::ListType>(), numbers);
    case TypeKind::DictType:
      return fitDict(value, type->expectRef<c10::DictType>(), numbers);
    case TypeKind::RRefType:
      return value.isRRef();
    default:
      return value.type()->isSubtypeOf(*type);
  }
}

// As coerce(), and as torch's parser: one number stands for a list of a known size, as of int[2].
bool fitArgument(at::IValue& value, const c10::Argument& argument, Numbers numbers) {
  TypePtr type = argument.type();
  if (fit(value, type, numbers)) return true;
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  const auto* const list = type->castRaw<c10::ListType>();
  if (!argument.N() || list == nullptr) return false;
  const TypePtr number = list->getElementType();
  const bool is_number =
      number->kind() == TypeKind::IntType || number->kind() == TypeKind::FloatType;
  if (!is_number || !fit(value, number, numbers)) return false;
  c10::List<at::IValue> out(number);
  for (int i = 0; i < *argument.N(); ++i)
    out.push_back(value);
  value = std::move(out);
  return true;
}

// The type of a tuple may be far larger than the tuple, which may hold the same one again and
// again.
std::string described(const at::IValue& value, int levels = 3) {
  constexpr std::size_t kShown = 8;
  if (!value.isTuple()) return value.type()->annotation_str();
  const auto& elements = value.toTupleRef().elements();
  if (elements.empty()) return "()";
  if (levels == 0) return "Tuple[...]";
  std::string text = "Tuple[";
  for (std::size_t i = 0; i < std::min(elements.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + described(elements[i], levels - 1);
  return text + (elements.size() > kShown ? ", ...]" : "]");
}

}  // namespace

bool coerce(at::IValue& value, const TypePtr& type) {
  return fit(value, type, Numbers::kConverted);
}

std::vector<at::IValue> bindArguments(const c10::FunctionSchema& schema,
                                      std::vector<at::IValue> args,
                                      const std::vector<std::string>& names, Numbers numbers) {
  const auto& wanted = schema.arguments();
  TORCH_CHECK(names.size() <= args.size(), "more names than arguments");
  const std::size_t positional = args.size() - names.size();
  TORCH_CHECK(positional <= wanted.size(), schema, " takes at most ", wanted.size(),
              " arguments, got ", positional);
  std::vector<std::optional<at::IValue>> given(wanted.size());
  for (std::size_t i = 0; i < positional; ++i) {
    TORCH_CHECK(!wanted[i].kwarg_only(), schema, ": argument '", wanted[i].name(),
                "' must be given by name");
    given[i] = std::move(args[i]);
  }
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
    TORCH_CHECK(fitArgument(*given[i], wanted[i], numbers), schema, ": argument '",
                wanted[i].name(), "' must be ", wanted[i].type()->annotation_str(), ", got ",
                described(*given[i]));
    out.push_back(std::move(*given[i]));
  }
  return out;
}

}  // namespace weft::ops
