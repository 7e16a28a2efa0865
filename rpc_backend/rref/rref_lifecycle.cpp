#include "rpc_backend/rref/rref_lifecycle.h"

#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "rpc_backend/core/innermost.h"
#include "rpc_backend/core/log.h"

namespace weft::rpc {

using torch::distributed::rpc::RRefContext;

namespace {

// The ids in the answer to a remote call, which autograd and the profiler may have wrapped.
std::optional<ForkIds> remoteResult(MessageType type, std::span<const char> payload) {
  const Innermost answer = innermost(type, payload);
  return answer.type == MessageType::REMOTE_RET ? readForkIds(answer.payload) : std::nullopt;
}

const std::string kNotCreated = "the value of this RRef was not created: ";

}  // namespace

MessagePtr RRefLifecycle::ack() { return torch::distributed::rpc::RRefAck().toMessage(); }

bool RRefLifecycle::serve(MessageType type, std::span<const char> payload, Rank from,
                          LossCount losses_then) {
  if (type == MessageType::RREF_CHILD_ACCEPT) {
    const auto fork = readForkId(payload);
    if (fork) table_.onChildAccept(*fork, from);
    return fork.has_value();
  }
  const auto ids = readForkIds(payload);
  if (!ids) return false;
  if (type == MessageType::RREF_USER_DELETE) {
    table_.onUserDelete(*ids, from);
  } else {
    table_.onForkRequest(*ids, from, losses_then);
  }
  return true;
}

std::optional<ForkIds> RRefLifecycle::onRemoteCall(std::span<const char> payload, Rank from,
                                                   LossCount losses_then) {
  const auto ids = readCreatedIds(payload);
  if (!ids || ids->value.created_on != from || ids->fork.created_on != from) return std::nullopt;
  table_.onRemoteCall(*ids, from, losses_then);
  return ids;
}

void RRefLifecycle::beforeAnswer(const Message& answer, Rank to, LossCount losses_then,
                                 const std::optional<ForkIds>& created) {
  if (const auto ids = remoteResult(answer.type(), answer.payload())) {
    table_.onRemoteResult(*ids, to, losses_then);
    dropLater(early_.end(ids->value));
  } else if (created) {
    table_.onRemoteFailure(*created);
    const auto& text = answer.payload();
    dropLater(early_.fail(created->value, kNotCreated + std::string(text.begin(), text.end())));
  }
}

void RRefLifecycle::onNotCreated(const RRefKey& value, Rank from, const std::string& why) {
  if (value.created_on != from) return;
  dropLater(early_.fail(value, kNotCreated + why));
  onFetch(value);
}

void RRefLifecycle::onFetch(const RRefKey& value) {
  const auto why = early_.whyFailed(value);
  if (!why) return;
  torch_rrefs::failAwaited([&](const RRefKey& awaited) { return awaited == value; },
                           std::make_exception_ptr(std::runtime_error(*why)));
}

void RRefLifecycle::failEarly(const std::function<bool(const RRefKey&)>& which,
                              const std::string& why) {
  for (auto& value : early_.failAll(which, why))
    dropLater(std::move(value));
}

void RRefLifecycle::onAnswerReceived(MessageType type, std::span<const char> payload) {
  if (const auto ids = remoteResult(type, payload)) table_.onUserSeen(ids->fork);
}

RRefLifecycle::Carried RRefLifecycle::beforeSend(const Message& message, Rank to) {
  const MessageType type = message.type();
  if (isRRefMessage(type)) {
    if (type == MessageType::RREF_CHILD_ACCEPT) return {};
    if (const auto ids = readForkIds(message.payload())) {
      type == MessageType::RREF_USER_DELETE ? table_.onUserGone(ids->fork)
                                            : table_.onUserSeen(ids->fork);
    }
    return {};
  }
  if (to == self_) {
    keepEarly(message.payload());
    return {};
  }
  Carried carried = findPickledRRefs(message.payload(), self_);
  std::erase_if(carried, [&](const PickledRRef& rref) {
    return rref.owner == self_ ? !torch_rrefs::hasFork(rref.ids)
                               : !torch_rrefs::hasChild(rref.ids.fork);
  });
  for (const PickledRRef& rref : carried)
    table_.beforeSend(rref, to);
  return carried;
}

void RRefLifecycle::keepEarly(std::span<const char> payload) {
  // torch drops these as soon as it has read the message.
  for (const PickledRRef& rref : findPickledRRefs(payload, self_)) {
    if (rref.owner == self_ && torch_rrefs::hasFork(rref.ids)) early_.keep(rref.ids.value);
  }
}

void RRefLifecycle::undo(const Carried& carried) {
  for (const PickledRRef& rref : carried)
    table_.undoSend(rref);
}

void RRefLifecycle::undoFork(const PickledRRef& rref) {
  if (rref.owner == self_) {
    removeFork(rref.ids);
  } else {
    childSettled(rref.ids.fork);
  }
}

std::vector<MessagePtr> RRefLifecycle::declining(std::span<const char> payload, Rank from,
                                                 std::size_t most) {
  std::vector<MessagePtr> messages;
  for (const PickledRRef& rref : findPickledRRefs(payload, from, most)) {
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
    logInfo("rank " + std::to_string(peer) + " is lost: released what it held of values here, " +
            std::to_string(released) + " in all");
  }
}

void RRefLifecycle::settleUsersOf(Rank owner, const OrphanedRRefs* orphans) {
  if (!RpcAgent::isCurrentRpcAgentSet()) return;
  for (const torch_rrefs::User& user : torch_rrefs::users()) {
    if (user.confirmed || user.rref->owner() != owner) continue;
    // torch's callback at the end of its call looks for it, throws when it is gone, and then no
    // other callback runs: whoever waits for that call would wait for ever.
    if (user.created) continue;
    if (orphans != nullptr && !orphans->contains(fromTorch(user.rref->rrefId()), owner)) continue;
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
  early_.keep(ids.value);
  return dropLater(
      RRefContext::getInstance().delForkOfOwner(toTorch(ids.value), toTorch(ids.fork)));
}

ForkTable::Dropped RRefLifecycle::dropLater(torch_rrefs::RRefPtr rref) {
  auto kept = keep(std::move(rref));
  if (kept == nullptr) return nullptr;
  void* const value = kept.get();
  return {value, [this, kept = std::move(kept)](void*) mutable {
            droppers_.run([kept = std::move(kept)] {});
          }};
}

void RRefLifecycle::childSettled(const RRefKey& fork) {
  if (RpcAgent::isCurrentRpcAgentSet()) RRefContext::getInstance().delPendingChild(toTorch(fork));
}

std::shared_ptr<void> RRefLifecycle::keep(torch_rrefs::RRefPtr rref) const {
  if (!rref) return nullptr;
  return {rref.release(), [drop = hooks_.drop](torch::distributed::rpc::RRef* value) {
            auto last = torch_rrefs::RRefPtr::reclaim(value);
            if (last->isPyObj()) drop(std::move(last));
          }};
}

std::vector<RRefRow> RRefLifecycle::report() const {
  if (!RpcAgent::isCurrentRpcAgentSet()) return {};
  return rrefReport(table_, hooks_.describe,
                    [this](torch_rrefs::RRefPtr rref) { keep(std::move(rref)); });
}

}  // namespace weft::rpc
