// HandOver: the two messages by which the memory changes hands, on one connected Unix socket.
// Every wait is bounded by the deadline given. The sockets are non-blocking.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/shm/segment/control.h"
#include "transport/auth/auth_key.h"
#include "transport/base/unique_fd.h"

namespace weft::collectives::shm {

// Rank 0: reads who comes, and gives the memory to it. The rank that came.
Result<int> give(int socket, int memory, const Magic& magic, const transport::AuthKey& secret,
                 int size, Deadline deadline);

struct Received {
  transport::UniqueFd memory;
  Magic magic{};
};

// The others: show themselves, and take it.
Result<Received> take(int socket, int rank, const transport::AuthKey& secret, Deadline deadline);

// True when `socket` became readable before the deadline.
bool awaitReadable(int socket, Deadline deadline);

}  // namespace weft::collectives::shm
