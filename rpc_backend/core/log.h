// The log (transport/base/log.h), by level.
#pragma once

#include <string>

#include "transport/base/log.h"

namespace weft::rpc {

using transport::LogLevel;

inline void logWarning(const std::string& text) { transport::log(LogLevel::kWarning, text); }
inline void logInfo(const std::string& text) { transport::log(LogLevel::kInfo, text); }
inline void logDebug(const std::string& text) { transport::log(LogLevel::kDebug, text); }

}  // namespace weft::rpc
