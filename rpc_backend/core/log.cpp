#include "rpc_backend/core/log.h"

#include <c10/util/Logging.h>

#include <algorithm>
#include <atomic>
#include <string_view>

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

// Bytes of the character with which `text` begins; 0: it is no UTF-8, or controls a terminal.
std::size_t characterAt(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return (first < 0x20 && first != '\t') || first == 0x7f ? 0 : 1;
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t at = 1; at < length; ++at)
    if ((byte(at) & 0xc0U) != 0x80) return 0;
  const unsigned char second = byte(1);
  const bool is_character = !(first == 0xc2 && second < 0xa0) &&
                            !(first == 0xe0 && second < 0xa0) &&
                            !(first == 0xed && second > 0x9f) &&
                            !(first == 0xf0 && second < 0x90) && !(first == 0xf4 && second > 0x8f);
  return is_character ? length : 0;
}

// Peers choose their names and the texts of their errors: nothing in them may look like another
// line of the log, or control the terminal.
std::string printable(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = characterAt(text);
    const auto byte = static_cast<unsigned char>(text.front());
    if (length > 0) {
      out += text.substr(0, length);
    } else if (byte == '\n') {
      out += "\n    ";
    } else {
      out += {'\\', 'x', kHex[byte >> 4U], kHex[byte & 0xfU]};
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

}  // namespace

LogLevel logLevel() noexcept { return currentLevel().load(std::memory_order_relaxed); }

void setLogLevel(LogLevel level) noexcept {
  currentLevel().store(level);
  transport::setLogLevel(level);
}

void setLogReader(transport::LogSink reader) noexcept { g_reader.store(reader); }

void logLine(LogLevel level, const std::string& text) {
  if (level < logLevel()) return;
  const std::string line = printable(text);
  if (const auto reader = g_reader.load()) return reader(level, line);
  logToStandardError(level, line);
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
