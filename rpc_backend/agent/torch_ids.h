// The ids that torch counts from 0 in every process: of RRefs, and of distributed autograd.
#pragma once

#include <cstdint>

namespace weft::rpc {

// For a worker that was started again under the rank of a former life: lets its ids begin anew at a
// random place, so that no other worker takes what it makes for what its former life made. Before
// the process makes any.
void startIdsAnew(std::int32_t rank);

// A random number to count on from: at least 2^40, and far from the end of 63 bits.
std::int64_t randomFirstId();

}  // namespace weft::rpc
