// The names of a result's NamedTuples, which travel as plain tuples (nested_values.h). A
// TorchScript caller has a type, which restores the names. A Python caller has none: it asks for
// the names, and gets them beside the value if the method's result has any. Plain functions, any
// thread.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>

#include "transport/base/api.h"

namespace weft::ops {

// Where NamedTuples are in a type, as JSON; empty: nowhere. A part that holds none is null;
// otherwise it is ["tuple", name or null, its fields or null, [part, …]], ["list", part], ["dict",
// part of the values] or ["optional", part]. A name is TorchScript's, "__torch__.module.Class".
// NamedTuples in a Union of several types are not told apart, and have no names.
std::string namesIn(const c10::TypePtr& type);

// The first of the three parts of what besideNames() makes.
inline constexpr const char* kNamesMark = "__weft__.names";
// Joins a value and the names in its type into one value; takeNames() takes them apart again.
// Nothing: it is another value.
at::IValue besideNames(at::IValue value, const std::string& names);
struct Named {
  std::string names;
  at::IValue value;
};
WEFT_API std::optional<Named> takeNames(const at::IValue& answer);

}  // namespace weft::ops
