// Weft's log lines, on c10's logging. WEFT_LOG_LEVEL (error, warning, info, debug;
// default warning) decides what is shown. Any thread.
#pragma once

#include <string>

namespace weft::rpc {

enum class LogLevel { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

LogLevel logLevel() noexcept;
void logLine(LogLevel level, const std::string& text);

inline void logWarning(const std::string& text) { logLine(LogLevel::kWarning, text); }
inline void logInfo(const std::string& text) { logLine(LogLevel::kInfo, text); }
inline void logDebug(const std::string& text) { logLine(LogLevel::kDebug, text); }

// The transport's remarks come here as well, from now on.
void adoptTransportLog();

// A line for the person who waits at the terminal, whatever the level: slow starts.
void progressLine(const std::string& text);

}  // namespace weft::rpc
