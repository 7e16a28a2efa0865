// What a failed operation throws.
//
// Threads: any.
#pragma once

#include <exception>
#include <optional>

#include "c10d_plugin/engine/op_recorder.h"
#include "transport/base/error.h"

namespace weft::process_group {

// Throws c10::DistBackendError, "weft:all_reduce: <why>", or c10::Error for an argument that cannot
// be used; where Ctrl-C ended the operation on this very thread, what its handler raised: only
// there it takes the GIL.
[[noreturn]] void throwAsTorch(const char* title, const transport::Error& error);

// Throws it, with what was called where that is known. A Work's waiters share the error, so this
// throws a copy, which has the same type.
[[noreturn]] void throwWithCall(const std::exception_ptr& error,
                                const std::optional<OpRecord>& call);

}  // namespace weft::process_group
