// A wait for a future of torch's that Ctrl-C ends; torch's own wait lasts until the future does.
//
// Any thread, without the GIL and with no lock held.
#pragma once

#include "rpc_backend/core/torch_names.h"
#include "transport/base/api.h"

namespace weft::rpc {

// Returns when the future is complete and this thread's streams wait for those of its value, as
// torch's wait() does; its error is not thrown. Throws what the handler of a signal raised; the
// future goes on. Throws in a forked child, where nobody would complete it.
WEFT_API void awaitInterruptibly(JitFuture& future);

}  // namespace weft::rpc
