// Rendezvous: how the memory that rank 0 made comes to the other ranks.
//
//   store        "shm" = the socket's name; or why rank 0 has none (joinTexts)
//   rank r -> 0  rank, nonce, HMAC-SHA-256(the group's key, "member" name rank nonce)
//   rank 0 -> r  magic, layout, HMAC-SHA-256(the group's key, "memory" name rank nonce magic
//                layout), and the memfd beside it
//
// Both sides also ask the kernel for the other's user (SO_PEERCRED) and refuse another user. Rank 0
// serves one connection at a time, for a second at most.
//
// A rank that fails publishes why in the store, at "shm-failed/<rank>". Rank 0 looks there for the
// ranks that do not come, and then fails all.
#pragma once

#include <memory>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/shm/segment/segment.h"
#include "c10d_plugin/store/key_value.h"
#include "transport/auth/auth_key.h"

namespace weft::collectives::shm {

// Rank 0's part, and the others'. On success the segment is mapped, and enter()ed. Rank 0 waits
// for the others; they do not wait for each other. `key`: the group's.
Result<std::shared_ptr<Segment>> host(const Layout& layout, const transport::AuthKey& key,
                                      KeyValue& store, Deadline deadline);
Result<std::shared_ptr<Segment>> attach(const transport::AuthKey& key, KeyValue& store, int rank,
                                        int size, Deadline deadline);

}  // namespace weft::collectives::shm
