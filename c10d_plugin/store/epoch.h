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
// Each rank says a random nonce. Rank 0 reads all, and says which it has read (the view). A rank
// that finds its own there confirms it by both nonces, its own and rank 0's, which no earlier epoch
// knew. When all have, rank 0 says that the view is agreed: it is of this epoch, because each rank
// finds its own nonce in it. The epoch's is rank 0's.
transport::Result<std::string> agreeOnEpoch(KeyValue& store, int rank, int size, Deadline deadline);

}  // namespace weft::collectives
