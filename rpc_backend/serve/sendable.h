// Which values torch's messages cannot carry.
//
// Any thread.
#pragma once

#include <ATen/core/ivalue.h>

#include "transport/base/api.h"

namespace weft::rpc {

// Whether an object of a TorchScript class or a member of an enum is in the value, at any depth:
// torch pickles them, and no process can unpickle them from a message.
WEFT_API bool holdsObject(const at::IValue& value);

// The end of a sentence about such a value; then comes what to send instead.
inline constexpr const char* kHoldsObject =
    " has an object of a TorchScript class or a member of an enum, which torch cannot send; ";

}  // namespace weft::rpc
