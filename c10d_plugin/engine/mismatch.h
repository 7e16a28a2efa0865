// What the ranks say of an operation that they called differently, for its error:
// "ranks 0, 2: float32[4] at train.py:31; rank 1: float32[5] at train.py:29".
//
// Threads: the one whose operation failed; takes the GIL for the stack.
#pragma once

#include <string>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/engine/op_recorder.h"
#include "c10d_plugin/store/key_value.h"

namespace weft::process_group {

// "float32[4] at train.py:31": the tensors, and the innermost line that is not torch's or Weft's;
// without a line where no stack was kept.
std::string describeCall(const OpRecord& own);

// Tells the others what this rank has called, and waits for what they say, for ten seconds at most.
// Of ranks that say nothing in that time, and where no Store answers, the text says nothing.
// `number`: of the group's operations, the same on all ranks.
std::string exchangeCalls(collectives::KeyValue& store, int rank, int size, std::uint64_t number,
                          const std::string& own);

}  // namespace weft::process_group
