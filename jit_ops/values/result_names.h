// The NamedTuples of a result. They travel as plain tuples (coerce.h); a TorchScript caller's type
// gives the names back. A Python caller has no type: it asks for the names, and gets them beside
// the value when the method's result has any. Plain functions, any thread.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>

#include "transport/base/api.h"

namespace weft::ops {

// Where NamedTuples are in a type, as JSON; empty when nowhere. A part is null where it holds none,
// else ["tuple", name or null, its fields or null, [part, …]], ["list", part], ["dict", part of the
// values] or ["optional", part]; a name is TorchScript's, "__torch__.module.Class". Of a Union of
// several types none can be told.
std::string namesIn(const c10::TypePtr& type);

// A value with the names in its type, as one value; and taken apart again: nothing for any other.
at::IValue besideNames(at::IValue value, const std::string& names);
struct Named {
  std::string names;
  at::IValue value;
};
WEFT_API std::optional<Named> takeNames(const at::IValue& answer);

}  // namespace weft::ops
