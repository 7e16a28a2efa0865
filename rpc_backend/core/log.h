// Weft's log lines: to standard error by c10's logging, or to a reader in this process, such as
// Python's logging. WEFT_LOG_LEVEL (error, warning, info, debug; default warning) decides what is
// shown, until setLogLevel(). Any thread.
//
// Texts may contain what peers say: a line goes on indented, and control characters and what is no
// UTF-8 are written as \xNN.
#pragma once

#include <string>

#include "transport/base/api.h"
#include "transport/base/log.h"

namespace weft::rpc {

using transport::LogLevel;

WEFT_API LogLevel logLevel() noexcept;
// For the transport, too.
WEFT_API void setLogLevel(LogLevel level) noexcept;
// From now on the lines go there instead; null: to standard error. It must not block.
WEFT_API void setLogReader(transport::LogSink reader) noexcept;
// As without a reader.
WEFT_API void logToStandardError(LogLevel level, const std::string& text);
WEFT_API void logLine(LogLevel level, const std::string& text);

inline void logWarning(const std::string& text) { logLine(LogLevel::kWarning, text); }
inline void logInfo(const std::string& text) { logLine(LogLevel::kInfo, text); }
inline void logDebug(const std::string& text) { logLine(LogLevel::kDebug, text); }

// Sends the transport's log lines here as well.
WEFT_API void adoptTransportLog();

}  // namespace weft::rpc
