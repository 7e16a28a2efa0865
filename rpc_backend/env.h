// Every environment variable that Weft reads, in one table. Python's
// `weft.env.table()`, `python -m weft.doctor` and docs/environment.md are made from it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rpc_backend/api.h"

namespace weft::rpc::env {

inline constexpr const char* kAuthKeyFile = "WEFT_AUTH_KEY_FILE";
inline constexpr const char* kSocketIfname = "WEFT_SOCKET_IFNAME";
inline constexpr const char* kLogLevel = "WEFT_LOG_LEVEL";
inline constexpr const char* kAsDefault = "WEFT_AS_DEFAULT";
inline constexpr const char* kAsProcessGroup = "WEFT_AS_PROCESS_GROUP";
inline constexpr const char* kRequestPolicy = "WEFT_REQUEST_POLICY";
inline constexpr const char* kHeartbeatInterval = "WEFT_HEARTBEAT_INTERVAL";
inline constexpr const char* kPeerTimeout = "WEFT_PEER_TIMEOUT";
inline constexpr const char* kReconnectTimeout = "WEFT_RECONNECT_TIMEOUT";
inline constexpr const char* kUnixSocket = "WEFT_UNIX_SOCKET";
inline constexpr const char* kSharedMemory = "WEFT_SHARED_MEMORY";

struct Variable {
  const char* name;
  const char* fallback;  // what holds when it is unset, as text
  const char* meaning;
};

WEFT_API std::span<const Variable> table();

// The variable's value, or "" when it is unset.
WEFT_API std::string value(const char* name);

// Names in the environment that begin with WEFT_ and are in no table: probably typing
// mistakes. Warned about once per process by the agent.
WEFT_API std::vector<std::string> unknownNames();
void warnAboutUnknownOnce();

}  // namespace weft::rpc::env
