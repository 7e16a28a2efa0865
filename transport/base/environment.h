// The names of the environment variables that Weft's C++ reads, and how it reads them. The table in
// rpc_backend/options/env.cpp says what they mean; Python and docs/reference/environment.md use it.
//
// Threads: any; nobody sets them while the program runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace weft::environment {

inline constexpr const char* kAuthKeyFile = "WEFT_AUTH_KEY_FILE";
inline constexpr const char* kEncryption = "WEFT_ENCRYPTION";
inline constexpr const char* kTlsCert = "WEFT_TLS_CERT";
inline constexpr const char* kTlsKey = "WEFT_TLS_KEY";
inline constexpr const char* kTlsCa = "WEFT_TLS_CA";
inline constexpr const char* kSocketIfname = "WEFT_SOCKET_IFNAME";
inline constexpr const char* kLogLevel = "WEFT_LOG_LEVEL";
inline constexpr const char* kHangReport = "WEFT_HANG_REPORT";
inline constexpr const char* kMetrics = "WEFT_METRICS";
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

// The error in the variables that take one of a few words, or "". Ask before any of them is used: a
// misspelt value that counted as the default would be noticed late.
inline std::string problem() {
  struct Choice {
    const char* name;
    std::vector<std::string_view> words;
  };
  const std::vector<Choice> choices{{kEncryption, {"auto", "on", "off"}},
                                    {kLogLevel, {"error", "warning", "info", "debug"}},
                                    {kAsDefault, {"0", "1"}},
                                    {kAsProcessGroup, {"0", "1"}},
                                    {kUnixSocket, {"0", "1"}},
                                    {kOtherUsers, {"0", "1"}},
                                    {kSharedMemory, {"0", "1"}},
                                    {kTcpConnections, {"1", "2"}}};
  for (const auto& [name, words] : choices) {
    const std::string given = value(name);
    if (given.empty() || std::find(words.begin(), words.end(), given) != words.end()) continue;
    std::string text = name;
    text += " must be ";
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (i > 0) text += i + 1 < words.size() ? ", " : " or ";
      text += words[i];
    }
    return text.append(", got '").append(given).append("'");
  }
  return {};
}

}  // namespace weft::environment
