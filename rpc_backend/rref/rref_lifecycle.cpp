#include "rpc_backend/rref/rref_lifecycle.h"

#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>

#include <algorithm>
#include <unordered_set>

#include "rpc_backend/core/log.h"
#include "rpc_backend/core/request_policy.h"
#include "rpc_backend/rref/torch_rrefs.h"

namespace weft::rpc {

using torch::distributed::rpc::MessageType;
using torch::distributed::rpc::OwnerRRef;
using torch::distributed::rpc::RpcAgent;
using torch::distributed::rpc::RRefContext;

namespace {

// The ids in the answer to a remote call, which autograd and the profiler may have wrapped.
std::optional<ForkIds> remoteResult(MessageType type, std::span<const char> payload) {
  const Innermost answer = innermost(type, payload);
  return answer.type == MessageType::REMOTE_RET ? readForkIds(answer.payload) : std::nullopt;
}

// Torch's count of ids when this thread last looked for RRefs in a message. An RRef is pickled on
// the thread that sends it, so a message sent while the count stands still holds none.
thread_local std::int64_t ids_looked_at = -1;

struct Keeper {
  Keeper(c10::intrusive_ptr<torch::distributed::rpc::RRef> kept,
         std::function<void(c10::intrusive_ptr<torch::distributed::rpc::RRef>)> hook)
      : rref(std::move(kept)), drop(std::move(hook)) {}
  ~Keeper() {
    if (rref->isPyObj()) drop(std::move(rref));
  }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  c10::intrusive_ptr<torch::distributed::rpc::RRef> rref;
  const std::function<void(c10::intrusive_ptr<torch::distributed::rpc::RRef>)> drop;
};

RRefHooks withDefaults(RRefHooks hooks) {
  if (!hooks.drop) {
    hooks.drop = [](c10::intrusive_ptr<torch::distributed::rpc::RRef> rref) {
      (void)rref.release();
    };
  }
  return hooks;
}

// Bytes of the storages of the tensors in `value`, each counted once.
std::uint64_t tensorBytes(const c10::IValue& value) {
  std::unordered_set<const void*> seen;
  std::uint64_t bytes = 0;
  value.visit([&](const c10::IValue& inner) {
    if (!inner.isTensor()) return false;
    const at::Tensor& tensor = inner.toTensor();
    if (!tensor.defined() || !tensor.has_storage()) return false;
    const at::Storage& storage = tensor.storage();
    if (seen.insert(storage.unsafeGetStorageImpl()).second) bytes += storage.nbytes();
    return false;
  });
  return bytes;
}

}  // namespace

RRefLifecycle::RRefLifecycle(Rank self, RRefHooks hooks)
    : self_(self), hooks_(withDefaults(std::move(hooks))), table_(*this, self) {}

c10::intrusive_ptr<RRefLifecycle::Message> RRefLifecycle::ack() {
  return torch::distributed::rpc::RRefAck().toMessage();
}

bool RRefLifecycle::serve(MessageType type, std::span<const char> payload, Rank from, Seen seen) {
  if (type == MessageType::RREF_CHILD_ACCEPT) {
    const auto fork = readForkId(payload);
    if (fork) table_.onChildAccept(*fork);
    return fork.has_value();
  }
  const auto ids = readForkIds(payload);
  if (!ids) return false;
  if (type == MessageType::RREF_USER_DELETE) {
    table_.onUserDelete(*ids);
  } else {
    table_.onForkRequest(*ids, from, seen);
  }
  return true;
}

void RRefLifecycle::onAnswer(const Message& answer, Rank to, Seen seen) {
  if (const auto ids = remoteResult(answer.type(), answer.payload())) {
    table_.onRemoteResult(*ids, to, seen);
  }
}

void RRefLifecycle::onAnswerReceived(MessageType type, std::span<const char> payload) {
  if (const auto ids = remoteResult(type, payload)) table_.onUserSeen(ids->fork);
}

RRefLifecycle::Carried RRefLifecycle::onSend(const Message& message, Rank to) {
  const MessageType type = message.type();
  if (isControl(type)) {
    if (type == MessageType::RREF_CHILD_ACCEPT) return {};
    if (const auto ids = readForkIds(message.payload())) {
      type == MessageType::RREF_USER_DELETE ? table_.onUserGone(ids->fork)
                                            : table_.onUserSeen(ids->fork);
    }
    return {};
  }
  const std::int64_t ids_made = torch_rrefs::idsMade();
  if (ids_made == ids_looked_at) return {};
  ids_looked_at = ids_made;
  if (to == self_) return {};
  Carried carried = findPickledRRefs(message.payload(), self_);
  std::erase_if(carried, [&](const PickledRRef& rref) {
    return rref.owner == self_ ? !torch_rrefs::hasFork(rref.ids)
                               : !torch_rrefs::hasChild(rref.ids.fork);
  });
  for (const PickledRRef& rref : carried)
    table_.onSend(rref, to);
  return carried;
}

void RRefLifecycle::undo(const Carried& carried) {
  for (const PickledRRef& rref : carried)
    table_.undoSend(rref);
}

std::vector<c10::intrusive_ptr<RRefLifecycle::Message>> RRefLifecycle::declining(
    std::span<const char> payload, Rank from) {
  std::vector<c10::intrusive_ptr<Message>> messages;
  for (const PickledRRef& rref : findPickledRRefs(payload, from)) {
    const auto fork = toTorch(rref.ids.fork);
    // An owner has put the fork into its table; anybody else waits until the child has asked the
    // owner for it (rref_context.cpp, notifyOwnerAndParentOfFork).
    messages.push_back(
        rref.owner == from
            ? torch::distributed::rpc::RRefUserDelete(toTorch(rref.ids.value), fork).toMessage()
            : torch::distributed::rpc::RRefChildAccept(fork).toMessage());
  }
  return messages;
}

void RRefLifecycle::releaseForks(Rank peer) {
  const std::size_t released = table_.releaseForks(peer);
  if (released > 0) {
    logInfo("released " + std::to_string(released) + " RRef(s) that rank " + std::to_string(peer) +
            ", which is lost, held of values here");
  }
}

void RRefLifecycle::lose(Rank peer) {
  table_.lose(peer);
  {
    const std::lock_guard lock(orphans_mutex_);
    ids_at_loss_[peer] = torch_rrefs::idsMade();
  }
  has_orphans_.store(true, std::memory_order_release);
}

void RRefLifecycle::orphan(Rank owner) {
  if (!RpcAgent::isCurrentRpcAgentSet()) return;
  for (const torch_rrefs::User& user : torch_rrefs::users()) {
    if (user.rref->owner() != owner) continue;
    const RRefKey value = fromTorch(user.rref->rrefId());
    // What this worker makes is told by its count, also when the new life is quicker than this.
    if (value.created_on == self_) continue;
    const std::lock_guard lock(orphans_mutex_);
    orphans_.insert(value);
  }
}

bool RRefLifecycle::isOrphan(const RRefKey& value, Rank owner) const {
  const std::lock_guard lock(orphans_mutex_);
  const auto lost = ids_at_loss_.find(owner);
  if (lost == ids_at_loss_.end()) return false;
  if (value.created_on == self_) return value.local_id < lost->second;
  return orphans_.contains(value);
}

std::optional<RRefKey> RRefLifecycle::orphanIn(const Message& message, Rank to) const {
  if (!has_orphans_.load(std::memory_order_acquire)) return std::nullopt;
  const auto [type, payload, recognised] = innermost(message.type(), message.payload());
  std::optional<RRefKey> value;
  if (type == MessageType::SCRIPT_RREF_FETCH_CALL || type == MessageType::PYTHON_RREF_FETCH_CALL) {
    value = readFetchedId(payload);
  } else if (type == MessageType::RREF_USER_DELETE || type == MessageType::RREF_FORK_REQUEST) {
    if (const auto ids = readForkIds(payload)) value = ids->value;
  }
  return value && isOrphan(*value, to) ? value : std::nullopt;
}

std::optional<PickledRRef> RRefLifecycle::orphanAmong(const Carried& carried) const {
  if (!has_orphans_.load(std::memory_order_acquire)) return std::nullopt;
  for (const PickledRRef& rref : carried) {
    if (rref.owner != self_ && isOrphan(rref.ids.value, rref.owner)) return rref;
  }
  return std::nullopt;
}

void RRefLifecycle::settleUsersOf(Rank owner, bool back) {
  if (!RpcAgent::isCurrentRpcAgentSet()) return;
  for (const torch_rrefs::User& user : torch_rrefs::users()) {
    if (user.confirmed || user.rref->owner() != owner) continue;
    if (back && !isOrphan(fromTorch(user.rref->rrefId()), owner)) continue;
    try {
      RRefContext::getInstance().delPendingUser(toTorch(user.fork));
    } catch (const std::exception& error) {
      logDebug(std::string("an RRef was confirmed in the meantime: ") + error.what());
    }
  }
}

void RRefLifecycle::addFork(const ForkIds& ids) {
  RRefContext::getInstance().addForkOfOwnerIfNotPresent(toTorch(ids.value), toTorch(ids.fork));
}

ForkTable::Dropped RRefLifecycle::removeFork(const ForkIds& ids) {
  // At the very end torch has neither an agent nor values any more.
  if (!RpcAgent::isCurrentRpcAgentSet()) return nullptr;
  auto kept =
      keep(RRefContext::getInstance().delForkOfOwner(toTorch(ids.value), toTorch(ids.fork)));
  if (kept == nullptr || !hooks_.later) return kept;
  void* const value = kept.get();
  return {value, [kept = std::move(kept), later = hooks_.later](void*) mutable {
            later([kept = std::move(kept)] {});
          }};
}

void RRefLifecycle::childSettled(const RRefKey& fork) {
  if (RpcAgent::isCurrentRpcAgentSet()) RRefContext::getInstance().delPendingChild(toTorch(fork));
}

std::shared_ptr<void> RRefLifecycle::keep(
    c10::intrusive_ptr<torch::distributed::rpc::RRef> rref) const {
  return rref ? std::make_shared<Keeper>(std::move(rref), hooks_.drop) : nullptr;
}

std::vector<RRefRow> RRefLifecycle::report() {
  if (!RpcAgent::isCurrentRpcAgentSet()) return {};
  const auto now = RRefTable::Clock::now();
  const auto secondsSince = [&](RRefTable::Clock::time_point since) {
    return std::chrono::duration<double>(now - since).count();
  };
  std::unordered_map<RRefKey, RRefTable::Holding, RRefKeyHash> holdings;
  for (const auto& holding : table_.holdings())
    holdings[holding.ids.fork] = holding;
  const auto users_since = table_.usersSince();
  std::vector<RRefRow> rows;
  for (torch_rrefs::Owned& owned : torch_rrefs::owned()) {
    RRefRow row;
    row.id = fromTorch(owned.rref->rrefId());
    row.owned = true;
    row.type = owned.rref->type()->annotation_str();
    row.owner = self_;
    for (const RRefKey& fork : owned.forks) {
      const auto found = holdings.find(fork);
      // A call to itself, or an RRef on its way to itself, is nobody else's.
      const Rank unknown = fork == row.id ? self_ : -1;
      row.holders.push_back(found == holdings.end() ? unknown : found->second.holder);
      if (found != holdings.end()) {
        row.age = std::max(row.age.value_or(0), secondsSince(found->second.since));
      }
    }
    std::sort(row.holders.begin(), row.holders.end());
    const auto future = static_cast<OwnerRRef&>(*owned.rref).getFuture();
    if (future->completed() && !future->hasError()) {
      const c10::IValue& value = future->constValue();
      if (!value.isPyObject()) {
        row.bytes = tensorBytes(value);
      } else if (hooks_.describe) {
        const RRefValue described = hooks_.describe(value);
        row.type = described.type;
        row.bytes = described.bytes;
      }
    }
    const auto dropped = keep(std::move(owned.rref));
    rows.push_back(std::move(row));
  }
  for (const torch_rrefs::User& user : torch_rrefs::users()) {
    RRefRow row;
    row.id = fromTorch(user.rref->rrefId());
    row.type = user.rref->type()->annotation_str();
    row.owner = user.rref->owner();
    if (const auto found = users_since.find(user.fork); found != users_since.end()) {
      row.age = secondsSince(found->second);
    }
    rows.push_back(std::move(row));
  }
  std::sort(rows.begin(), rows.end(), [](const RRefRow& a, const RRefRow& b) {
    return std::tie(b.owned, a.id) < std::tie(a.owned, b.id);
  });
  return rows;
}

}  // namespace weft::rpc
