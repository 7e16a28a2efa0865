#include "rpc_backend/core/log.h"

#include <c10/util/Logging.h>

#include <atomic>

#include "transport/base/environment.h"

namespace weft::rpc {

namespace {

std::atomic<LogLevel>& currentLevel() noexcept {
  static std::atomic<LogLevel> level = [] {
    const std::string name = environment::value(environment::kLogLevel);
    if (name == "error") return LogLevel::kError;
    if (name == "info") return LogLevel::kInfo;
    if (name == "debug") return LogLevel::kDebug;
    return LogLevel::kWarning;
  }();
  return level;
}

std::atomic<transport::LogSink> g_reader{nullptr};

}  // namespace

LogLevel logLevel() noexcept { return currentLevel().load(std::memory_order_relaxed); }

void setLogLevel(LogLevel level) noexcept {
  currentLevel().store(level);
  transport::setLogLevel(level);
}

void setLogReader(transport::LogSink reader) noexcept { g_reader.store(reader); }

void logLine(LogLevel level, const std::string& text) {
  if (level < logLevel()) return;
  if (const auto reader = g_reader.load()) return reader(level, text);
  logToStandardError(level, text);
}

void logToStandardError(LogLevel level, const std::string& text) {
  // c10 hides INFO by default, so what WEFT_LOG_LEVEL asks for is a warning-level line that names
  // its level.
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
  transport::setLogLevel(logLevel());
  transport::setLogSink(&logLine);
}

}  // namespace weft::rpc
