// Which epoch of a group this is. A Store may remember an earlier one: torchrun restarts the
// workers of a failed group with the Store that the first ones used. So the ranks agree on who
// takes part this time before they believe anything else that they read there.
//
// Threads: one at a time. Failure: kTimeout names the missing ranks; else the Store's error.
#pragma once

#include <string>

#include "c10d_plugin/store/key_value.h"

namespace weft::collectives {

// A nonce that is the same on all ranks, and of no earlier epoch: a name space for all other keys.
//
// Each rank says a random nonce, then which nonces it has read of all ranks, until all have read
// the same ones. Those are of this epoch, because each rank knows its own. The epoch's is rank 0's.
transport::Result<std::string> agreeOnEpoch(KeyValue& store, int rank, int size, Deadline deadline);

}  // namespace weft::collectives
