// The two messages by which rank 0 gives the memory to another rank, on one connected Unix socket.
// Every wait is bounded by the deadline. The sockets are non-blocking.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/shm/segment/control.h"
#include "transport/auth/auth_key.h"
#include "transport/base/unique_fd.h"

namespace weft::collectives::shm {

// Rank 0's side: authenticates the other and gives it the memory. Returns its rank.
Result<int> give(int socket, int memory, const Magic& magic, const transport::AuthKey& secret,
                 int size, Deadline deadline);

struct Received {
  transport::UniqueFd memory;
  Magic magic{};
};

// The other ranks' side: authenticates itself and takes the memory.
Result<Received> take(int socket, int rank, const transport::AuthKey& secret, Deadline deadline);

// True when `socket` became readable before the deadline.
bool awaitReadable(int socket, Deadline deadline);

}  // namespace weft::collectives::shm
