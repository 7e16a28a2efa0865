// What the ranks say of an operation that they called differently, for its error:
// "ranks 0, 2: float32[4] at train.py:31; rank 1: float32[5] at train.py:29".
//
// Threads: the one whose operation failed.
#pragma once

#include <string>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/store/key_value.h"

namespace weft::process_group {

// Tells the others what this rank has called, and waits for what they say, for six seconds at
// most; the text names those that say nothing in that time. Where no Store answers it has this
// rank's call only. `own`: argumentsText().
// `number`: of the group's operations, the same on all ranks.
std::string exchangeCalls(collectives::KeyValue& store, int rank, int size, std::uint64_t number,
                          const std::string& own);

}  // namespace weft::process_group
