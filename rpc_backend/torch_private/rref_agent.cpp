#include "rpc_backend/torch_private/rref_agent.h"

#include <pthread.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/rref_context.h>

#include <atomic>
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

WEFT_PRIVATE_MEMBER(ContextMutex, &RRefContext::mutex_);
WEFT_PRIVATE_MEMBER(DestroyedMutex, &RRefContext::destroyedMutex_);
WEFT_PRIVATE_MEMBER(Destroyed, &RRefContext::destroyed_);
WEFT_PRIVATE_MEMBER(Agent, &RRefContext::agent_);
WEFT_PRIVATE_MEMBER(CurrentAgent, &RpcAgent::currentRpcAgent_);

RRefContext& instance() { return RRefContext::getInstance(); }

// The member is const, so it is replaced by a new object ([basic.life]). Returns what it was.
std::shared_ptr<RpcAgent> exchangeAgent(std::shared_ptr<RpcAgent> next) {
  const std::shared_ptr<RpcAgent>& place = of(instance(), Agent{});
  std::shared_ptr<RpcAgent> former = place;
  std::destroy_at(&place);
  new (const_cast<std::shared_ptr<RpcAgent>*>(&place)) std::shared_ptr<RpcAgent>(std::move(next));
  return former;
}

// torch loads its current agent in most of its functions, and a fork must not find that locked.
// Where it is a plain pointer, libstdc++ takes one of its mutexes (bits/shared_ptr_atomic.h), which
// is held across the fork. Where it is an atomic one (2.15), it has a bit that another thread may
// have set: the child's begins anew.
class AgentAcrossFork {
 public:
  void hold(std::shared_ptr<RpcAgent>* place) { lock_.emplace(place); }
  void hold(std::atomic<std::shared_ptr<RpcAgent>>* place) { agent_ = place->load(); }
  // Drop the result without a lock: it may be the last reference.
  std::shared_ptr<RpcAgent> letGo() {
    lock_.reset();
    return std::move(agent_);
  }
  void beginInChild(std::shared_ptr<RpcAgent>*) { lock_.reset(); }
  void beginInChild(std::atomic<std::shared_ptr<RpcAgent>>* place) {
    new (place) std::atomic<std::shared_ptr<RpcAgent>>(std::move(agent_));
  }

 private:
  std::optional<std::_Sp_locker> lock_;
  std::shared_ptr<RpcAgent> agent_;
};

AgentAcrossFork& agentAcrossFork() {
  static AgentAcrossFork held;
  return held;
}

void beforeFork() {
  of(instance(), ContextMutex{}).lock();
  agentAcrossFork().hold(member(CurrentAgent{}));
}

void afterFork() {
  const auto agent = agentAcrossFork().letGo();
  of(instance(), ContextMutex{}).unlock();
}

// In the forking thread, which holds the context's lock. The other lock is held while messages are
// sent, too long to wait for: whoever has it is not in the child, so the child's begins anew.
void endInChild() {
  auto& sending = of(instance(), DestroyedMutex{});
  new (&sending) std::mutex;
  of(instance(), Destroyed{}) = true;
  agentAcrossFork().beginInChild(member(CurrentAgent{}));
  of(instance(), ContextMutex{}).unlock();
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
  if (of(instance(), Agent{}) != current) endUsers();
  std::shared_ptr<RpcAgent> former;  // goes without the lock
  const std::lock_guard sending(of(instance(), DestroyedMutex{}));
  if (of(instance(), Agent{}) != current) former = exchangeAgent(std::move(current));
  of(instance(), Destroyed{}) = false;
}

void endInForkedChildren() {
  if (!RpcAgent::isCurrentRpcAgentSet()) return;
  static const bool once = [] {
    instance();
    return ::pthread_atfork(beforeFork, afterFork, endInChild) == 0;
  }();
  if (!once)
    logWarning(
        "a forked child of this process must not use its RRefs: no memory for a fork handler");
}

}  // namespace weft::rpc::torch_rrefs
