// What a caller is told of an error.
//
// Any thread.
#pragma once

#include <string>

#include "transport/base/api.h"

namespace weft::rpc {

// A c10::Error's text without its C++ stack frames, which tell the caller of another process
// nothing; whole if TORCH_SHOW_CPP_STACKTRACES is 1 here. Other texts stay as they are.
WEFT_API std::string withoutStack(const std::string& text);

}  // namespace weft::rpc
