// WeftAgent: the RRef messages it serves itself, and what the loss of a peer means for RRefs.
#include <algorithm>

#include "rpc_backend/agent/weft_agent.h"
#include "rpc_backend/core/log.h"

namespace weft::rpc {

using std::chrono::milliseconds;
using torch::distributed::rpc::MessageType;

namespace {

// What a lost peer held is released only after this time. It may have passed an RRef on just
// before: the child's request to its owner is then under way, and must find the value.
constexpr milliseconds kReapGrace{1000};
constexpr std::size_t kMaxLeakLines = 10;

}  // namespace

bool WeftAgent::serveRRefControl(worker_id_t from, const IncomingMessage& in,
                                 RRefLifecycle::Seen seen) {
  if (!rrefs_.serve(static_cast<MessageType>(in.type()), in.payload(), from, seen)) return false;
  metrics_.calls_served.fetch_add(1, std::memory_order_relaxed);
  const auto ack = RRefLifecycle::ack();
  ack->setId(static_cast<std::int64_t>(in.callId()));
  sendResponse(from, in.callId(), ack);
  return true;
}

// Whether an RRef message may count as answered without being sent. Its only purpose is to keep
// the other's books right, and they are closed; torch would re-send it for 13 s and then
// print an error. A request for a fork of a lost owner counts too: the reference is then
// usable, and using it fails with the owner's name.
bool WeftAgent::nothingLeftToSay(worker_id_t to, std::uint16_t type) const {
  if (to == config_.rank) return false;
  if (lossOf(to) || directory_.find(to) == nullptr) return true;
  const bool ended = closing_ || !rpcAgentRunning_.load();
  return ended && static_cast<MessageType>(type) != MessageType::RREF_FORK_REQUEST;
}

c10::intrusive_ptr<WeftAgent::JitFuture> WeftAgent::asIfAcknowledged() const {
  auto future = c10::make_intrusive<JitFuture>(at::AnyClassType::get(), devices_);
  future->markCompleted(RRefLifecycle::ack());
  return future;
}

void WeftAgent::cleanUpAfter(worker_id_t peer) {
  {
    const std::lock_guard lock(loss_mutex_);
    if (!cleaning_up_.insert(peer).second) return;
  }
  const auto grace = std::min(
      kReapGrace, milliseconds(static_cast<std::int64_t>(config_.options.peer_timeout * 500)));
  endpoint_->runAfter(grace, [weak = weak_from_this(), peer] {
    const auto self = weak.lock();
    if (!self) return;
    self->completers_.run([self, peer] {
      {
        const std::lock_guard lock(self->loss_mutex_);
        self->cleaning_up_.erase(peer);
      }
      self->rrefs_.releaseForks(peer);
      self->rrefs_.settleUsersOf(peer, !self->lossOf(peer).has_value());
    });
  });
}

std::string WeftAgent::orphanText(const RRefKey& value, worker_id_t owner) const {
  std::string reason;
  {
    const std::lock_guard lock(loss_mutex_);
    const auto found = former_losses_.find(owner);
    if (found != former_losses_.end()) reason = ": " + found->second;
  }
  return "worker '" + nameOf(owner) + "' (rank " + std::to_string(owner) +
         ") was started again, and the RRef " + toString(value) +
         " refers to a value of its former life, which is lost" + reason;
}

std::vector<RRefRow> WeftAgent::rrefReport() { return rrefs_.report(); }

std::string WeftAgent::nameOf(worker_id_t id) const {
  const WorkerInfo* info = directory_.everKnown(id);
  return info == nullptr ? "?" : info->name_;
}

void WeftAgent::warnAboutLeakedRRefs(bool ignored) {
  if (ignored && logLevel() < LogLevel::kInfo) return;
  std::size_t leaked = 0;
  for (const RRefRow& row : rrefs_.report()) {
    if (!row.owned || row.holders.empty() || ++leaked > kMaxLeakLines) continue;
    std::string whom;
    auto holders = row.holders;
    holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
    for (const Rank holder : holders) {
      whom += (whom.empty() ? "'" : ", '") + nameOf(static_cast<worker_id_t>(holder)) + "'";
    }
    logWarning(me() + " leaks a value of type " + row.type + " (" + toString(row.id) + ", " +
               std::to_string(row.bytes.value_or(0)) +
               " bytes of tensors): it is still referred to by " + whom);
  }
  if (leaked > kMaxLeakLines) {
    logWarning(me() + " leaks " + std::to_string(leaked - kMaxLeakLines) + " more values");
  }
}

}  // namespace weft::rpc
