// Weft's log lines: to standard error, or to a sink in this process, such as Python's logging.
// WEFT_LOG_LEVEL (error, warning, info, debug; default warning) decides what is shown, until
// setLogLevel(). Any thread.
//
// Texts may contain what peers say: a line goes on indented, and control characters and what is no
// UTF-8 are written as \xNN.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "transport/base/api.h"

namespace weft::transport {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

// Called on whichever thread logs; must not block long and must not throw.
using LogSink = void (*)(LogLevel level, const std::string& text);

// nullptr: standard error.
WEFT_API void setLogSink(LogSink sink) noexcept;
// What is below is not formatted nor passed on.
WEFT_API void setLogLevel(LogLevel level) noexcept;
bool logEnabled(LogLevel level) noexcept;
WEFT_API void log(LogLevel level, const std::string& text) noexcept;
// The text as log() writes it, for an error that says what somebody else wrote.
std::string printable(std::string_view text);
// As without a sink.
WEFT_API void logToStandardError(LogLevel level, const std::string& text) noexcept;

}  // namespace weft::transport
