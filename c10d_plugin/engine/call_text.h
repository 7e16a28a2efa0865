// What a failed operation throws, and what a rank has called, as errors say it.
//
// Threads: raise(): any; it takes the GIL only on a thread that can be interrupted. The rest: any
// that may wait for the GIL: the stack's lines need it.
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "c10d_plugin/engine/op_recorder.h"
#include "transport/base/error.h"

namespace weft::process_group {

// Throws what a failed operation throws: c10::DistBackendError, "weft all_reduce: <why>"; where
// Ctrl-C ended it on this very thread, what its handler raised.
[[noreturn]] void raise(const char* title, const transport::Error& error);

// "float32[4] at train.py:31": the tensors, and the innermost line that is not torch's or Weft's;
// without a line where no stack was kept.
std::string argumentsText(const OpRecord& own);

// "all_reduce float32[4] in the default process group". Without the line: finding it makes torch
// import modules for seconds, and a failure is to be told at once.
std::string callText(const OpRecord& own);

// Throws it, with what was called where that is known. A Work's waiters share the error, so this
// throws a copy, which has the same type.
[[noreturn]] void throwWithCall(const std::exception_ptr& error,
                                const std::optional<OpRecord>& call);

}  // namespace weft::process_group
