#include "rpc_backend/torch_private/rref_agent.h"

#include <pthread.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/rref_context.h>

#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "rpc_backend/core/log.h"
#include "rpc_backend/core/private_member.h"
#include "rpc_backend/core/torch_names.h"
#include "rpc_backend/torch_private/torch_rrefs.h"

namespace weft::rpc::torch_rrefs {

namespace {

using torch::distributed::rpc::RRefContext;

WEFT_PRIVATE_MEMBER(Mutex, &RRefContext::mutex_);
WEFT_PRIVATE_MEMBER(DestroyedMutex, &RRefContext::destroyedMutex_);
WEFT_PRIVATE_MEMBER(Destroyed, &RRefContext::destroyed_);
WEFT_PRIVATE_MEMBER(Agent, &RRefContext::agent_);
WEFT_PRIVATE_MEMBER(CurrentAgent, &RpcAgent::currentRpcAgent_);

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

// While the context is marked as destroyed this sends nothing.
void endUsers() {
  for (const User& user : users())
    user.rref->tryDel();
}

}  // namespace

void beginWithCurrentAgent() {
  if (!RpcAgent::isCurrentRpcAgentSet()) return;
  auto current = RpcAgent::getCurrentRpcAgent();
  if (of(context(), Agent{}) != current) endUsers();
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

}  // namespace weft::rpc::torch_rrefs
