// Tensors that need gradients, anywhere in a value. Any thread.
#pragma once

#include <ATen/core/ivalue.h>

namespace weft::ops {

bool holdsGradients(const at::IValue& value);

// The same value with no history in it. No copy where there is none; tensors share their memory.
at::IValue withoutGradients(at::IValue value);

}  // namespace weft::ops
