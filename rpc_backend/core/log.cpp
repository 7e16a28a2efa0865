#include "rpc_backend/core/log.h"

#include <c10/util/Logging.h>

#include <cstdio>

#include "rpc_backend/core/env.h"
#include "transport/base/log.h"

namespace weft::rpc {

namespace {

struct SameLevel {
  LogLevel here;
  transport::LogLevel there;
};
constexpr SameLevel kLevels[] = {
    {LogLevel::kError, transport::LogLevel::kError},
    {LogLevel::kWarning, transport::LogLevel::kWarning},
    {LogLevel::kInfo, transport::LogLevel::kInfo},
    {LogLevel::kDebug, transport::LogLevel::kDebug},
};

void fromTransport(transport::LogLevel level, const std::string& text) {
  for (const SameLevel& same : kLevels) {
    if (same.there == level) logLine(same.here, text);
  }
}

}  // namespace

LogLevel logLevel() noexcept {
  static const LogLevel level = [] {
    const std::string name = env::value(env::kLogLevel);
    if (name == "error") return LogLevel::kError;
    if (name == "info") return LogLevel::kInfo;
    if (name == "debug") return LogLevel::kDebug;
    return LogLevel::kWarning;
  }();
  return level;
}

void logLine(LogLevel level, const std::string& text) {
  if (level > logLevel()) return;
  // c10 hides INFO by default; a person who asked for it by WEFT_LOG_LEVEL gets it as a
  // warning-level line that says what it is.
  switch (level) {
    case LogLevel::kError:
      LOG(ERROR) << "weft: " << text;
      break;
    case LogLevel::kWarning:
      LOG(WARNING) << "weft: " << text;
      break;
    case LogLevel::kInfo:
      LOG(WARNING) << "weft (info): " << text;
      break;
    case LogLevel::kDebug:
      LOG(WARNING) << "weft (debug): " << text;
      break;
  }
}

void adoptTransportLog() {
  for (const SameLevel& same : kLevels) {
    if (same.here == logLevel()) transport::setLogLevel(same.there);
  }
  transport::setLogSink(&fromTransport);
}

void progressLine(const std::string& text) {
  std::fprintf(stderr, "weft: %s\n", text.c_str());
  std::fflush(stderr);
}

}  // namespace weft::rpc
