// Every environment variable that Weft reads, in one table. Python's
// `weft.env.table()`, `python -m weft.doctor` and docs/reference/environment.md are made from it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "transport/base/api.h"
#include "transport/base/environment.h"

namespace weft::rpc::env {

using environment::kAsDefault;
using environment::kAsProcessGroup;
using environment::kAuthKeyFile;
using environment::kHeartbeatInterval;
using environment::kLogLevel;
using environment::kPeerTimeout;
using environment::kReconnectTimeout;
using environment::kRequestPolicy;
using environment::kSharedMemory;
using environment::kSocketIfname;
using environment::kTcpConnections;
using environment::kUnixSocket;
using environment::value;

struct Variable {
  const char* name;
  const char* fallback;  // what holds when it is unset, as text
  const char* meaning;
};

WEFT_API std::span<const Variable> table();

// Names in the environment that begin with WEFT_ and are in no table: probably typing
// mistakes. Warned about once per process by the agent.
WEFT_API std::vector<std::string> unknownNames();
void warnAboutUnknownOnce();

}  // namespace weft::rpc::env
