// Checks and changes of every part of a value, at any depth in lists, tuples and dicts. Plain
// functions, any thread. A value without anything to change is not copied; tensors share their
// memory.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace weft::ops {

bool requiresGrad(const at::IValue& value);

// The same value with its tensors detached; of a future, when it is there.
at::IValue detached(at::IValue value);

// The value with its NamedTuples as plain tuples, because only the process that defined their class
// could read them. coerce() restores the names if a type has them.
at::IValue withoutNames(at::IValue value);
c10::TypePtr withoutNames(const c10::TypePtr& type);

}  // namespace weft::ops
