// AgentConfig: what a WeftAgent is made of. Plain data.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <optional>
#include <string>

#include "rpc_backend/options/options.h"
#include "rpc_backend/rref/rref_lifecycle.h"

namespace weft::rpc {

struct AgentConfig {
  c10::intrusive_ptr<c10d::Store> store;
  std::string name;
  std::int64_t rank = -1;         // torch refuses one that worker_id_t cannot hold
  std::optional<int> world_size;  // none: a dynamic group
  int device_count = 0;           // accelerators of this process
  WeftRpcBackendOptions options;
  RRefHooks rref_hooks;      // in a process with Python
  ThreadHooks thread_hooks;  // for the threads that run requests and complete futures
  // In start(), when it is the current agent; may be empty.
  std::function<void()> before_serving;
  // For tests: how long a message is held back before it is sent; may be empty.
  std::function<milliseconds(MessageType)> send_delay;
  // For tests: why a message is not sent; nothing: it is. May be empty.
  std::function<std::optional<std::string>(const Message&)> send_fault;
};

}  // namespace weft::rpc
