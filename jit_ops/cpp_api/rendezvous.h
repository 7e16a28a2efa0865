// Where C++ workers meet the others: the stores and prefixes that torch.distributed.rpc.init_rpc
// uses.
#pragma once

#include <string>

#include "jit_ops/weft.h"

namespace weft::ops {

// rank and world_size from RANK and WORLD_SIZE where the options leave them open, and the host in
// env:// or tcp://, whose route decides which interface to listen on. Throws c10::Error for a
// missing or bad value.
void fillFromEnvironment(JoinOptions& options);

// The store of options.init_method; rank 0 serves a TCP one. Bounded by rpc.rpcTimeoutSeconds.
c10::intrusive_ptr<c10d::Store> openStore(const JoinOptions& options);

}  // namespace weft::ops
