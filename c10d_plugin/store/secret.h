// How the ranks of a group come by its id and key: rank 0 makes them, and shares them through the
// Store.
#pragma once

#include "c10d_plugin/store/key_value.h"
#include "transport/auth/auth_key.h"

namespace weft::collectives {

// Called by all ranks. The Store's error when rank 0 does not share it by the deadline.
transport::Result<transport::GroupSecret> shareSecret(KeyValue& store, int rank, Deadline deadline);

}  // namespace weft::collectives
