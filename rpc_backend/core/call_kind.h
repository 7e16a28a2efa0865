// The kinds of calls, by the type of their message. They decide how a call may be waited for and
// ended. Any thread.
#pragma once

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

// RRef.to_here(): torch waits for this future on the calling thread and deserialises the answer
// there, so the future has no user callback.
bool waitsInTorch(MessageType type);

// The calls for which a thread takes its InlineWaiter. Other messages must not claim it: a
// collected RRef may send one from the thread that is about to wait for its call.
bool mayHaveWaiter(MessageType type);

// The calls that a user makes. The deadline of the request in which they are made ends them, too.
// The others keep tables right, or belong to a backward pass of torch's.
bool isUserCall(MessageType type);

}  // namespace weft::rpc
