// A Store may remember an earlier epoch of the same group: torchrun starts the workers of a failed
// group again with the Store that the first ones used (2.11, dynamic_rendezvous.py keeps it). So
// before anything that is read there is believed, the ranks agree on who takes part this time.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "c10d_plugin/core/key_value.h"
#include "transport/base/error.h"

namespace weft::collectives {

struct Epoch {
  std::string nonce;  // the same on all ranks, and in no earlier epoch: a name space for the rest
  std::vector<std::string> said;  // by rank: what each told of itself
};

// `about`: what this rank tells the others. kTimeout names the ranks that are missing.
//
// Each rank says a random nonce, then which nonces it has read of all; when all have read the same
// ones, they are the present ones, because each rank knows its own. Until then it reads again.
transport::Result<Epoch> agreeOnEpoch(KeyValue& store, int rank, int size, const std::string& about,
                                      std::chrono::steady_clock::time_point deadline);

}  // namespace weft::collectives
