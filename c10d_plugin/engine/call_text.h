// What a rank has called, as errors say it.
//
// Threads: any.
#pragma once

#include <string>

#include "c10d_plugin/engine/op_recorder.h"

namespace weft::process_group {

// "float32[4] at train.py:31": the tensors, and the innermost line that is not torch's or Weft's;
// without a line where none was kept.
std::string argumentsText(const OpRecord& own);

// "all_reduce float32[4] in the default process group". Without the line, which the program's own
// traceback has.
std::string callText(const OpRecord& own);

}  // namespace weft::process_group
