// The transport's log. The default sink writes "weft: …" to standard error; a layer above may set
// its own. Threads: any.
#pragma once

#include <cstdint>
#include <string>

namespace weft::transport {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

// Called on whichever thread logs; must not block long and must not throw.
using LogSink = void (*)(LogLevel level, const std::string& text);

// nullptr restores the default.
void setLogSink(LogSink sink) noexcept;
// What is below is not formatted nor passed on. Default: kWarning.
void setLogLevel(LogLevel level) noexcept;
bool logEnabled(LogLevel level) noexcept;
void log(LogLevel level, const std::string& text) noexcept;

}  // namespace weft::transport
