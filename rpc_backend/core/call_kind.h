// What kind of call a message is, which decides how it may be waited for and ended. Any thread.
#pragma once

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc {

// RRef.to_here(): the calling thread waits for this very future and deserialises the answer itself,
// so no callback of the user's hangs on it.
bool waitsInTorch(MessageType type);

// The types for which a thread takes its waiter. A collected RRef may send a message of another
// type from the thread that is about to wait for its call.
bool mayHaveWaiter(MessageType type);

// The calls that a user makes, which the deadline of the call around them ends. The others keep
// tables right, or are torch's way through a backward pass.
bool isUsers(MessageType type);

}  // namespace weft::rpc
