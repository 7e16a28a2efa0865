// From where torch counts the ids of RRefs and of distributed autograd in this process. Any thread.
//
// It names private members (private_member.h), which are the same in 2.11 to 2.15.
#pragma once

#include <cstdint>

#include "rpc_backend/wire/rref_wire.h"

namespace weft::rpc::torch_rrefs {

// Ids made by this process so far: grows with each RRef that is pickled. Costs one load.
std::int64_t idsMade() noexcept;
// torch counts the ids of RRefs and of distributed autograd from 0 in every process. For a worker
// that was started again under its former rank: they begin at a random number, so that no other
// worker takes them for ids of its former life. Call it before the process makes any.
void startIdsAnew(Rank self);
// A random number to count on from: at least 2^40, and far from the end of 63 bits.
std::int64_t randomFirstId();

}  // namespace weft::rpc::torch_rrefs
