#include "rpc_backend/rref/torch_rrefs.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/rref_context.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "rpc_backend/core/log.h"
#include "transport/base/os/secure_random.h"

namespace weft::rpc::torch_rrefs {

namespace {

using torch::distributed::autograd::DistAutogradContainer;
using torch::distributed::rpc::OwnerRRef;
using torch::distributed::rpc::RPCErrorType;
using torch::distributed::rpc::RRefContext;

// An explicit instantiation may name private members ([temp.explicit]); the friend that it defines
// returns the pointer to the member.
struct Mutex {
  friend auto member(Mutex);
};
struct DestroyedMutex {
  friend auto member(DestroyedMutex);
};
struct Destroyed {
  friend auto member(Destroyed);
};
struct Agent {
  friend auto member(Agent);
};
struct Owners {
  friend auto member(Owners);
};
struct Forks {
  friend auto member(Forks);
};
struct PendingOwners {
  friend auto member(PendingOwners);
};
struct PendingUsers {
  friend auto member(PendingUsers);
};
struct ConfirmedUsers {
  friend auto member(ConfirmedUsers);
};
struct PendingChildren {
  friend auto member(PendingChildren);
};
struct NextLocalId {
  friend auto member(NextLocalId);
};
struct Creation {
  friend auto member(Creation);
};
struct SetFailed {
  friend auto member(SetFailed);
};
struct NextContext {
  friend auto member(NextContext);
};
struct NextMessage {
  friend auto member(NextMessage);
};
struct Contexts {
  friend auto member(Contexts);
};
struct CurrentAgent {
  friend auto member(CurrentAgent);
};

template <typename Tag, auto Member>
struct Expose {
  friend auto member(Tag) { return Member; }
};

template struct Expose<Mutex, &RRefContext::mutex_>;
template struct Expose<DestroyedMutex, &RRefContext::destroyedMutex_>;
template struct Expose<Destroyed, &RRefContext::destroyed_>;
template struct Expose<Agent, &RRefContext::agent_>;
template struct Expose<Owners, &RRefContext::owners_>;
template struct Expose<Forks, &RRefContext::forks_>;
template struct Expose<PendingOwners, &RRefContext::pendingOwners_>;
template struct Expose<PendingUsers, &RRefContext::pendingUsers_>;
template struct Expose<ConfirmedUsers, &RRefContext::confirmedUsers_>;
template struct Expose<PendingChildren, &RRefContext::pendingChildren_>;
template struct Expose<NextLocalId, &RRefContext::nextLocalId_>;
template struct Expose<Creation, &RRef::ownerCreationFuture_>;
template struct Expose<SetFailed, &RRef::setTimedOut>;
template struct Expose<NextContext, &DistAutogradContainer::next_context_id_>;
template struct Expose<NextMessage, &DistAutogradContainer::next_autograd_message_id_>;
template struct Expose<Contexts, &DistAutogradContainer::autograd_contexts_>;
template struct Expose<CurrentAgent, &RpcAgent::currentRpcAgent_>;

template <typename Tag>
auto& of(RRefContext& context, Tag tag) {
  return context.*member(tag);
}

RRefContext& context() { return RRefContext::getInstance(); }

// The member is const, so it is replaced by a new object ([basic.life]). Returns what it was.
std::shared_ptr<RpcAgent> exchangeAgent(std::shared_ptr<RpcAgent> next) {
  const std::shared_ptr<RpcAgent>& place = of(context(), Agent{});
  std::shared_ptr<RpcAgent> former = place;
  std::destroy_at(&place);
  new (const_cast<std::shared_ptr<RpcAgent>*>(&place)) std::shared_ptr<RpcAgent>(std::move(next));
  return former;
}

// torch loads its current agent by std::atomic_load, in most of its functions; libstdc++ takes one
// of its mutexes for that (bits/shared_ptr_atomic.h), this one.
std::optional<std::_Sp_locker>& agentLock() {
  static std::optional<std::_Sp_locker> held;
  return held;
}

void beforeFork() {
  of(context(), Mutex{}).lock();
  agentLock().emplace(member(CurrentAgent{}));
}

void afterFork() {
  agentLock().reset();
  of(context(), Mutex{}).unlock();
}

// In the forking thread, which holds the context's lock. The other lock is held while messages are
// sent, too long to wait for: whoever has it is not in the child, so the child's begins anew.
void endInChild() {
  auto& sending = of(context(), DestroyedMutex{});
  new (&sending) std::mutex;
  of(context(), Destroyed{}) = true;
  afterFork();
}

}  // namespace

std::int64_t idsMade() noexcept { return member(NextLocalId{})->load(std::memory_order_relaxed); }

std::int64_t randomFirstId() {
  std::array<std::uint8_t, 8> random{};
  auto error = transport::fillRandom(random);
  TORCH_CHECK(!error, error.text());
  std::uint64_t bits = 0;
  std::memcpy(&bits, random.data(), sizeof(bits));
  return static_cast<std::int64_t>((bits >> 3U) | std::uint64_t{1} << 40U);
}

void startIdsAnew(Rank self) {
  auto& next = *member(NextLocalId{});
  if (next.load() == 0) next.store(randomFirstId());
  // torch keeps the worker in the upper 16 bits of these.
  const auto first = [self] {
    return static_cast<std::int64_t>(self) << 48 |
           (randomFirstId() & ((std::int64_t{1} << 46) - 1));
  };
  try {
    DistAutogradContainer& container = DistAutogradContainer::getInstance();
    (container.*member(NextContext{})).store(first());
    (container.*member(NextMessage{})).store(first());
  } catch (const c10::Error& error) {
    logDebug(std::string("distributed autograd is not in use: ") + error.what_without_backtrace());
  }
}

void beginWithCurrentAgent() {
  if (!RpcAgent::isCurrentRpcAgentSet()) return;
  auto current = RpcAgent::getCurrentRpcAgent();
  std::shared_ptr<RpcAgent> former;  // goes without the lock
  const std::lock_guard sending(of(context(), DestroyedMutex{}));
  if (of(context(), Agent{}) != current) former = exchangeAgent(std::move(current));
  of(context(), Destroyed{}) = false;
}

void endInForkedChildren() {
  if (!RpcAgent::isCurrentRpcAgentSet()) return;
  static const bool once = [] {
    context();
    return ::pthread_atfork(beforeFork, afterFork, endInChild) == 0;
  }();
  if (!once)
    logWarning(
        "a forked child of this process must not use its RRefs: no memory for a fork handler");
}

std::vector<Owned> owned() {
  std::vector<Owned> all;
  const std::lock_guard lock(of(context(), Mutex{}));
  const auto& forks = of(context(), Forks{});
  for (const auto& [id, rref] : of(context(), Owners{})) {
    Owned one{rref, {}};
    if (const auto found = forks.find(id); found != forks.end()) {
      for (const auto& fork : found->second)
        one.forks.push_back(fromTorch(fork));
    }
    all.push_back(std::move(one));
  }
  return all;
}

std::vector<User> users() {
  std::vector<User> all;
  const std::lock_guard lock(of(context(), Mutex{}));
  for (const auto& [fork, state] : of(context(), PendingUsers{})) {
    const bool created = ((*state->rref_).*member(Creation{})) != nullptr;
    all.push_back({state->rref_, fromTorch(fork), false, created});
  }
  for (const auto& [fork, weak] : of(context(), ConfirmedUsers{})) {
    if (RRefPtr rref = weak.lock()) all.push_back({std::move(rref), fromTorch(fork), true, false});
  }
  return all;
}

bool hasFork(const ForkIds& ids) {
  const std::lock_guard lock(of(context(), Mutex{}));
  const auto& forks = of(context(), Forks{});
  const auto found = forks.find(toTorch(ids.value));
  return found != forks.end() && found->second.contains(toTorch(ids.fork));
}

bool hasChild(const RRefKey& fork) {
  const std::lock_guard lock(of(context(), Mutex{}));
  return of(context(), PendingChildren{}).contains(toTorch(fork));
}

void failFirst() {
  static const auto first = [] {
    auto rref = c10::make_intrusive<OwnerRRef>(0, toTorch(RRefKey{0, 0}), c10::AnyType::get(),
                                               std::vector<c10::Device>());
    rref->handleError(RPCErrorType::TIMEOUT,
                      *c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get()));
    return rref.release();
  }();
  static_cast<void>(first);
}

bool markOwnFailed(const RRefKey& value) {
  const std::lock_guard lock(of(context(), Mutex{}));
  const auto& owners = of(context(), Owners{});
  const auto found = owners.find(toTorch(value));
  if (found == owners.end()) return false;
  ((*found->second).*member(SetFailed{}))();
  return true;
}

RRefPtr markFailed(const c10::ivalue::Future& creation, const std::optional<ForkIds>& created) {
  const auto marked = [&creation](const RRefPtr& rref) {
    const bool found = ((*rref).*member(Creation{})).get() == &creation;
    if (found) ((*rref).*member(SetFailed{}))();
    return found;
  };
  const std::lock_guard lock(of(context(), Mutex{}));
  const auto& users = of(context(), PendingUsers{});
  const auto& owners = of(context(), Owners{});  // of calls to this worker itself
  if (created) {
    const auto user = users.find(toTorch(created->fork));
    if (user != users.end() && marked(user->second->rref_)) return user->second->rref_;
    const auto owner = owners.find(toTorch(created->value));
    if (owner != owners.end() && marked(owner->second)) return owner->second;
  }
  for (const auto& [fork, state] : users) {
    if (marked(state->rref_)) return state->rref_;
  }
  for (const auto& [id, rref] : owners) {
    if (marked(rref)) return rref;
  }
  return {};
}

bool isAwaited(const RRefKey& value) {
  const std::lock_guard lock(of(context(), Mutex{}));
  return of(context(), PendingOwners{}).contains(toTorch(value));
}

void failAwaited(const std::function<bool(const RRefKey&)>& which, std::exception_ptr error) {
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> failed;
  {
    const std::lock_guard lock(of(context(), Mutex{}));
    std::erase_if(of(context(), PendingOwners{}), [&](const auto& awaited) {
      if (!which(fromTorch(awaited.first))) return false;
      failed.push_back(awaited.second);
      return true;
    });
  }
  for (const auto& future : failed)
    future->setErrorIfNeeded(error);
}

void endOwnWaits(RRef& marked, std::exception_ptr error) {
  static_cast<OwnerRRef&>(marked).setError(std::move(error));
}

std::vector<std::int64_t> contextsOf(worker_id_t creator) try {
  std::vector<std::int64_t> found;
  for (auto& shard : DistAutogradContainer::getInstance().*member(Contexts{})) {
    const std::lock_guard lock(shard.lock);
    for (const auto& [id, context] : shard.contexts)
      if (creatorOf(id) == creator) found.push_back(id);
  }
  return found;
} catch (const c10::Error&) {
  return {};  // torch makes the container with its first RPC agent of Python's
}

void releaseContexts(const std::vector<std::int64_t>& ids) {
  for (const std::int64_t id : ids)
    DistAutogradContainer::getInstance().releaseContextIfPresent(id);
}

}  // namespace weft::rpc::torch_rrefs
