// Weft's log lines, on c10's logging. WEFT_LOG_LEVEL (error, warning, info, debug;
// default warning) decides what is shown. Any thread.
#pragma once

#include <string>

#include "transport/base/api.h"
#include "transport/base/log.h"

namespace weft::rpc {

using transport::LogLevel;

LogLevel logLevel() noexcept;
WEFT_API void logLine(LogLevel level, const std::string& text);

inline void logWarning(const std::string& text) { logLine(LogLevel::kWarning, text); }
inline void logInfo(const std::string& text) { logLine(LogLevel::kInfo, text); }
inline void logDebug(const std::string& text) { logLine(LogLevel::kDebug, text); }

// Sends the transport's log lines here as well.
void adoptTransportLog();

}  // namespace weft::rpc
