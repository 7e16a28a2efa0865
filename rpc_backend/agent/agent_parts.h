// AgentParts: the parts of one agent, joined to each other, and how they begin and end.
//
// Threads: as each part says; join() and close() wait, without the GIL.
// Ownership: a task that still runs keeps all of them (AgentContext::keepAlive).
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "rpc_backend/agent/agent_config.h"
#include "rpc_backend/agent/message_router.h"
#include "rpc_backend/call/request_client.h"
#include "rpc_backend/group/group.h"
#include "rpc_backend/rref/rref_service.h"
#include "rpc_backend/serve/request_server.h"
#include "transport/memory/warm_pool.h"

namespace weft::rpc {

struct AgentParts {
  // Takes the hooks out of `config`.
  AgentParts(AgentConfig& config, std::unique_ptr<RequestCallback> callback);

  // Starts the threads, listens and meets the other workers. Throws c10::Error or c10::ValueError;
  // then close() follows.
  void join();
  // Nothing arrives, waits or runs any more. Idempotent.
  void close();
  // What the parts count; `gil`: also the mean wait for the GIL.
  void addMetrics(std::unordered_map<std::string, std::string>& out, bool gil);

  // Each may use those above it; what one needs of those below it comes as a function.
  AgentContext context;
  const std::shared_ptr<transport::WarmPool> receive_pool = transport::WarmPool::create();
  MessageSender sender;
  Group group;
  RRefService rrefs;
  RequestClient client;
  RequestServer server;
  MessageRouter router;

 private:
  void open(const transport::GroupSecret& secret);
};

}  // namespace weft::rpc
