// The names of the environment variables that Weft's C++ reads, and how. What they mean is in the
// table above (rpc_backend/core/env.cpp), which Python and docs/reference/environment.md are made
// from.
//
// Threads: any; nobody sets them while the program runs.
#pragma once

#include <cstdlib>
#include <string>

namespace weft::environment {

inline constexpr const char* kAuthKeyFile = "WEFT_AUTH_KEY_FILE";
inline constexpr const char* kEncryption = "WEFT_ENCRYPTION";
inline constexpr const char* kTlsCert = "WEFT_TLS_CERT";
inline constexpr const char* kTlsKey = "WEFT_TLS_KEY";
inline constexpr const char* kTlsCa = "WEFT_TLS_CA";
inline constexpr const char* kSocketIfname = "WEFT_SOCKET_IFNAME";
inline constexpr const char* kLogLevel = "WEFT_LOG_LEVEL";
inline constexpr const char* kAsDefault = "WEFT_AS_DEFAULT";
inline constexpr const char* kAsProcessGroup = "WEFT_AS_PROCESS_GROUP";
inline constexpr const char* kRequestPolicy = "WEFT_REQUEST_POLICY";
inline constexpr const char* kHeartbeatInterval = "WEFT_HEARTBEAT_INTERVAL";
inline constexpr const char* kPeerTimeout = "WEFT_PEER_TIMEOUT";
inline constexpr const char* kReconnectTimeout = "WEFT_RECONNECT_TIMEOUT";
inline constexpr const char* kUnixSocket = "WEFT_UNIX_SOCKET";
inline constexpr const char* kOtherUsers = "WEFT_OTHER_USERS";
inline constexpr const char* kSharedMemory = "WEFT_SHARED_MEMORY";
inline constexpr const char* kTcpConnections = "WEFT_TCP_CONNECTIONS";

// The variable's value, or "" when it is unset.
inline std::string value(const char* name) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets it later
  return text == nullptr ? std::string() : std::string(text);
}

}  // namespace weft::environment
