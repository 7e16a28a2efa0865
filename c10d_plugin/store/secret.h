// The group's id and key, which rank 0 makes and shares through the Store. It protects the group
// from strangers as well as the Store protects its contents.
#pragma once

#include <string>

#include "c10d_plugin/store/key_value.h"
#include "transport/auth/auth_key.h"

namespace weft::collectives {

struct GroupSecret {
  std::string group_id;
  transport::AuthKey key;
};

// Called by all ranks. The Store's error when rank 0 does not share it by the deadline.
transport::Result<GroupSecret> shareSecret(KeyValue& store, int rank, Deadline deadline);

}  // namespace weft::collectives
