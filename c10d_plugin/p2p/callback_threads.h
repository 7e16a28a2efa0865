// Threads for the callbacks of messages' futures, which may block. Python's exit waits for them:
// the interpreter ends a thread that asks for the GIL too late, and that ends the process.
//
// They are counted for the whole process, because callbacks may outlive their group. A forked child
// has none of its parent's.
//
// Threads: any.
#pragma once

#include <chrono>
#include <functional>

#include "transport/base/api.h"

namespace weft::process_group {

// Runs `callbacks` on a thread of its own, which releases them, too. False: none can be started.
bool runOnOwnThread(std::function<void()> callbacks);

// Waits until no such thread runs, by asking every millisecond: once, as the process ends. False
// when `limit` passed first. Without the GIL.
WEFT_API bool waitForCallbacks(std::chrono::milliseconds limit);

}  // namespace weft::process_group
