#include "rpc_backend/torch_private/autograd_contexts.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>

#include <mutex>

#include "rpc_backend/core/private_member.h"

namespace weft::rpc::autograd_contexts {

namespace {

using torch::distributed::autograd::DistAutogradContainer;
using torch::distributed::autograd::PropagateGradientsReq;

WEFT_PRIVATE_MEMBER(Contexts, &DistAutogradContainer::autograd_contexts_);

}  // namespace

bool isHere(std::int64_t context) try {
  DistAutogradContainer::getInstance().isValidContext(context);
  return true;
} catch (const c10::Error&) {
  return false;
}

std::shared_ptr<void> keepAlive(const Message& gradients) try {
  const auto request = PropagateGradientsReq::fromMessage(gradients);
  return DistAutogradContainer::getInstance().retrieveContext(
      request->getAutogradMetadata().autogradContextId);
} catch (const std::exception&) {
  return nullptr;  // it has been released, or this is no message of torch's
}

std::vector<std::int64_t> begunBy(worker_id_t worker) try {
  std::vector<std::int64_t> found;
  for (auto& shard : of(DistAutogradContainer::getInstance(), Contexts{})) {
    const std::lock_guard lock(shard.lock);
    for (const auto& [id, context] : shard.contexts)
      if (creatorOf(id) == worker) found.push_back(id);
  }
  return found;
} catch (const c10::Error&) {
  return {};  // torch makes the container with its first RPC agent of Python's
}

void release(const std::vector<std::int64_t>& ids) {
  for (const std::int64_t id : ids)
    DistAutogradContainer::getInstance().releaseContextIfPresent(id);
}

}  // namespace weft::rpc::autograd_contexts
