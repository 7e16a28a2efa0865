// Removes C++ stack frames from errors that reach C++ callers, whom they tell nothing; keeps them
// if TORCH_SHOW_CPP_STACKTRACES is 1.
//
// Any thread.
#pragma once

#include "transport/base/api.h"

namespace c10 {
class Error;
}

namespace weft::ops {

// Call it in a handler of `error`. Throws it again with a what() without frames. It keeps its type;
// a type that is none of torch's own is thrown as it is.
[[noreturn]] WEFT_API void throwWithoutStack(const c10::Error& error);

}  // namespace weft::ops
