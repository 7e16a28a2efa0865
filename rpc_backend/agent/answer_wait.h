// Waits for the answer to a call that this thread has sent, and that nobody else waits for.
//
// Any thread, without the GIL and with no lock held.
#pragma once

#include "rpc_backend/core/torch_names.h"
#include "transport/base/api.h"

namespace weft::rpc {

// Returns when `answer`, the agent's future, is complete: with the answer or an error. A thread
// that has taken its InlineWaiter completes it itself. Ctrl-C cancels the call, and what its
// handler raised is thrown.
WEFT_API void awaitAnswer(JitFuture& answer);

}  // namespace weft::rpc
