// How rank 0 gives the group's memory to a process at the other end of a Unix socket, once each has
// shown that it knows the group's key and is of the same user. The messages: rendezvous.h.
// `socket_name`: where rank 0 listens, as its caller knows it.
//
// Threads: any. Every wait ends at its deadline, or by Ctrl-C. Failure: kAuthFailed for a stranger;
// kPeerLost, kTimeout, kProtocol or kSystem for what else goes wrong.
#pragma once

#include <string>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/shm/segment/segment.h"
#include "transport/auth/auth_key.h"
#include "transport/base/interruption.h"
#include "transport/base/os/unique_fd.h"

namespace weft::collectives::shm {

// Rank 0's end. Returns the rank of the process that has the memory now.
Result<int> giveMemory(transport::UniqueFd socket, const Segment& segment,
                       const transport::AuthKey& key, const std::string& socket_name,
                       Deadline deadline);

struct GivenMemory {
  Magic magic{};
  Layout layout;  // as rank 0 says: not checked
  transport::UniqueFd fd;
};
// Rank `rank`'s end.
Result<GivenMemory> takeMemory(transport::UniqueFd socket, const transport::AuthKey& key,
                               const std::string& socket_name, int rank, Deadline deadline);

// Waits until `socket` is readable.
transport::Waited awaitReadable(int socket, Deadline deadline);

}  // namespace weft::collectives::shm
