// Changes to every part of a value, at any depth in lists, tuples and dicts. Plain functions, any
// thread. No copy where there is nothing to change; tensors share their memory.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace weft::ops {

bool requiresGrad(const at::IValue& value);
// Whether forward-mode AD, where it is on, would expect a tangent of what comes of the value.
bool hasForwardGradient(const at::IValue& value);

// The same value with no history in it.
at::IValue detached(at::IValue value);

// The value with its NamedTuples as plain tuples: only the process that defined their class could
// read them. coerce() restores the names if a type has them.
at::IValue withoutNames(at::IValue value);
c10::TypePtr withoutNames(const c10::TypePtr& type);

}  // namespace weft::ops
