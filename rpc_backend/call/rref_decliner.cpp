#include "rpc_backend/call/rref_decliner.h"

#include <string>
#include <utility>

#include "rpc_backend/call/request_client.h"
#include "transport/base/thrown.h"

namespace weft::rpc {

std::shared_ptr<void> RRefDecliner::count(worker_id_t to) {
  {
    const std::lock_guard lock(mutex_);
    std::size_t& unacknowledged = unacknowledged_[to];
    if (unacknowledged == kMostUnacknowledged) return nullptr;
    ++unacknowledged;
  }
  return {this, [to, alive = context_.keepAlive()](RRefDecliner* decliner) {
            const std::lock_guard lock(decliner->mutex_);
            const auto found = decliner->unacknowledged_.find(to);
            if (--found->second == 0) decliner->unacknowledged_.erase(found);
          }};
}

void RRefDecliner::decline(worker_id_t from, std::span<const char> payload) {
  // The two kinds of message that decline are moot together.
  if (rrefs_.isMoot(from, MessageType::RREF_USER_DELETE)) return;
  const auto timeout = toTimeout(context_.options.rpcTimeoutSeconds);
  for (const auto& message : RRefLifecycle::declining(payload, from, kMostUnacknowledged + 1)) {
    auto counted = count(from);
    if (counted == nullptr) {
      return sender_.endpoint()->losePeer(
          from,
          {transport::ErrorCode::kLimitExceeded,
           group_.describe(from) + " is cut off: it does not acknowledge what becomes of " +
               std::to_string(kMostUnacknowledged) + " RRefs in its messages that were not taken"});
    }
    client_.send(from, message, timeout, {})
        ->addCallback([counted = std::move(counted)](JitFuture&) {}, /*uses_future=*/false);
  }
}

void RRefDecliner::declineLater(worker_id_t from, std::shared_ptr<IncomingMessage> in) {
  static_cast<void>(transport::thrownBy([&] {
    context_.droppers.run([this, alive = context_.keepAlive(), from, in = std::move(in)] {
      decline(from, in->payload());
    });
  }));
}

}  // namespace weft::rpc
