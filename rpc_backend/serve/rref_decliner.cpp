#include "rpc_backend/serve/rref_decliner.h"

#include <string>

namespace weft::rpc {

std::shared_ptr<void> RRefDecliner::count(worker_id_t to) {
  {
    const std::lock_guard lock(mutex_);
    std::size_t& unanswered = unanswered_[to];
    if (unanswered == kMostUnanswered) return nullptr;
    ++unanswered;
  }
  return {this, [to, alive = context_.keepAlive()](RRefDecliner* decliner) {
            const std::lock_guard lock(decliner->mutex_);
            const auto found = decliner->unanswered_.find(to);
            if (--found->second == 0) decliner->unanswered_.erase(found);
          }};
}

void RRefDecliner::decline(worker_id_t from, std::span<const char> payload) {
  // The two kinds of message that decline are moot together.
  if (rrefs_.isMoot(from, MessageType::RREF_USER_DELETE)) return;
  const auto timeout = fromSeconds(context_.options.rpcTimeoutSeconds);
  for (const auto& message : RRefLifecycle::declining(payload, from, kMostUnanswered + 1)) {
    auto counted = count(from);
    if (counted == nullptr) {
      return sender_.endpoint()->losePeer(
          from, {transport::ErrorCode::kLimitExceeded,
                 group_.describe(from) + " is cut off: it does not acknowledge what becomes of " +
                     std::to_string(kMostUnanswered) + " RRefs in its requests that did not run"});
    }
    client_.send(from, message, timeout, {})
        ->addCallback([counted = std::move(counted)](JitFuture&) {}, /*uses_future=*/false);
  }
}

}  // namespace weft::rpc
