// What an error says of two ranks that called different operations.
#pragma once

#include <string>

#include "c10d_plugin/core/mailbox.h"

namespace weft::collectives {

// "the ranks called different operations: rank 2 called …, rank 0 called …". The labels are those
// of two OpFingerprints: `theirs` may be a message's that the operation `ours` cannot take.
std::string differentCalls(int their_rank, const Label& theirs, int own_rank, const Label& ours);

}  // namespace weft::collectives
