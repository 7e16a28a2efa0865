// What a rank has called, as errors say it.
//
// Threads: any that may wait for the GIL: the stack's lines need it.
#pragma once

#include <string>

#include "c10d_plugin/engine/op_recorder.h"

namespace weft::process_group {

// "float32[4] at train.py:31": the tensors, and the innermost line that is not torch's or Weft's;
// without a line where no stack was kept.
std::string argumentsText(const OpRecord& own);

// "all_reduce float32[4] in the default process group". Without the line: finding it makes torch
// import modules for seconds, and a failure is to be told at once.
std::string callText(const OpRecord& own);

}  // namespace weft::process_group
