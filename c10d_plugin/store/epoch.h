// Which epoch of a group this is. A Store may remember an earlier one: torchrun restarts the
// workers of a failed group with the Store that the first ones used. So the ranks agree on who
// takes part this time before they believe anything else that they read there.
//
// Threads: one at a time. Failure: kTimeout names the missing ranks; else the Store's error.
#pragma once

#include <string>
#include <vector>

#include "c10d_plugin/store/key_value.h"

namespace weft::collectives {

struct Epoch {
  // The same on all ranks, and in no earlier epoch: a name space for all other keys.
  std::string nonce;
  std::vector<std::string> said;  // by rank: what each said about itself
};

// `about`: what this rank says about itself.
//
// Each rank says a random nonce, then which nonces it has read of all ranks, until all have read
// the same ones. Those are of this epoch, because each rank knows its own.
transport::Result<Epoch> agreeOnEpoch(KeyValue& store, int rank, int size, const std::string& about,
                                      Deadline deadline);

}  // namespace weft::collectives
