// Where C++ workers meet the others: the stores and prefixes that torch.distributed.rpc.init_rpc
// uses.
#pragma once

#include <chrono>

#include "jit_ops/weft.h"

namespace weft::ops {

// rank and world_size from RANK and WORLD_SIZE where the options leave them open, and the host in
// env:// or tcp://, whose route decides which interface to listen on. A group that `may_be_dynamic`
// has the size WORLD_SIZE only with env://. Throws c10::Error for a missing or bad value.
void fillFromEnvironment(JoinOptions& options, bool may_be_dynamic);

// How long the store may be waited for: rpc.rpcTimeoutSeconds, or torch's default of it where that
// is 0, which is no limit for calls, but no time at all for a store.
std::chrono::milliseconds storeTimeout(const JoinOptions& options);

// The store of options.init_method; rank 0 serves a TCP one. Bounded by storeTimeout().
c10::intrusive_ptr<c10d::Store> openStore(const JoinOptions& options);

}  // namespace weft::ops
