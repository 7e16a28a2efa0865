// The contexts of distributed autograd that this process has a part in: those that a worker has
// begun, and their end.
//
// It names a private member of DistAutogradContainer (private_member.h), which is the same in 2.11
// to 2.15.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rpc_backend/core/torch_names.h"

namespace weft::rpc::autograd_contexts {

// Who began a context of distributed autograd: torch keeps it in the upper 16 bits of the id.
inline worker_id_t creatorOf(std::int64_t context) noexcept {
  return static_cast<worker_id_t>(context >> 48);
}
bool isHere(std::int64_t context);
// Keeps the context alive whose gradients a BACKWARD_AUTOGRAD_REQ brings to another worker, until
// the result goes; null: it is not here.
std::shared_ptr<void> keepAlive(const Message& gradients);
// Ids of the contexts of distributed autograd here that this worker has begun. Not on the loop
// thread: torch drops graphs with its locks held, which may need the GIL.
std::vector<std::int64_t> begunBy(worker_id_t worker);
// Not on the loop thread: tells the other workers that have a part in one.
void release(const std::vector<std::int64_t>& ids);

}  // namespace weft::rpc::autograd_contexts
