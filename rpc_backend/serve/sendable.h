// Which values torch's messages cannot carry.
//
// Any thread.
#pragma once

#include <ATen/core/ivalue.h>

#include "rpc_backend/wire/pickle_scan.h"  // kHasObject
#include "transport/base/api.h"

namespace weft::rpc {

// Whether an object of a TorchScript class or a member of an enum is in the value, at any depth:
// torch pickles them, and no process can unpickle them from a message. kHasObject says so.
WEFT_API bool holdsObject(const at::IValue& value);

}  // namespace weft::rpc
