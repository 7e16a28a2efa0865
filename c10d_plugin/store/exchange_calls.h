// What the ranks say of an operation that they called differently, for its error:
// "ranks 0, 2: float32[4] at train.py:31; rank 1: float32[5] at train.py:29".
//
// Threads: the one whose operation failed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/store/key_value.h"

namespace weft::collectives {

struct NumberedCall {
  std::uint64_t number = 0;  // of the group's operations, the same on all ranks
  std::string text;          // "float32[4] at train.py:31"
};

// Tells the others what this rank has called, and waits for what they say, for seven seconds at
// most; the text names those that say nothing in that time: all others where the process that
// serves the Store is stopped. Ctrl-C ends the wait.
// `last`: the difference ends the group. Then a rank may find out only in a later operation; the
// text says that it had done its part of the one that differed.
std::string exchangeCalls(std::shared_ptr<KeyValue> store, int rank, int size,
                          const NumberedCall& own, bool last);

}  // namespace weft::collectives
