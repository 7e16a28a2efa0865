#include "rpc_backend/torch_private/autograd_contexts.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>

#include <mutex>

#include "rpc_backend/core/private_member.h"

namespace weft::rpc::autograd_contexts {

namespace {

using torch::distributed::autograd::DistAutogradContainer;
using torch::distributed::autograd::DistAutogradContext;
using torch::distributed::autograd::PropagateGradientsReq;

WEFT_PRIVATE_MEMBER(Contexts, &DistAutogradContainer::autograd_contexts_);

std::shared_ptr<DistAutogradContext> find(std::int64_t id) try {
  for (auto& shard : of(DistAutogradContainer::getInstance(), Contexts{})) {
    const std::lock_guard lock(shard.lock);
    const auto found = shard.contexts.find(id);
    if (found != shard.contexts.end()) return found->second;
  }
  return nullptr;
} catch (const c10::Error&) {
  return nullptr;  // torch makes the container with its first RPC agent of Python's
}

}  // namespace

bool isHere(std::int64_t context) { return find(context) != nullptr; }

std::shared_ptr<void> contextOf(const Message& gradients) try {
  return find(
      PropagateGradientsReq::fromMessage(gradients)->getAutogradMetadata().autogradContextId);
} catch (const std::exception&) {
  return nullptr;  // not a message of torch's
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
  return {};  // as above
}

void release(const std::vector<std::int64_t>& ids) {
  for (const std::int64_t id : ids)
    DistAutogradContainer::getInstance().releaseContextIfPresent(id);
}

}  // namespace weft::rpc::autograd_contexts
