#include "transport/base/log.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <string_view>

#include "transport/base/check.h"
#include "transport/base/environment.h"

namespace weft::transport {
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

std::atomic<LogSink> g_sink{nullptr};

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

// Nothing for a warning, which most lines are.
const char* levelText(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::kDebug:
      return " (debug)";
    case LogLevel::kInfo:
      return " (info)";
    case LogLevel::kWarning:
      return "";
    case LogLevel::kError:
      return " (error)";
  }
  return "";
}

}  // namespace

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

void setLogSink(LogSink sink) noexcept { g_sink.store(sink); }
void setLogLevel(LogLevel level) noexcept { currentLevel().store(level); }
bool logEnabled(LogLevel level) noexcept {
  return level >= currentLevel().load(std::memory_order_relaxed);
}

void log(LogLevel level, const std::string& text) noexcept try {
  if (!logEnabled(level)) return;
  const LogSink sink = g_sink.load();
  (sink != nullptr ? sink : &logToStandardError)(level, printable(text));
} catch (const std::exception& error) {
  std::fprintf(stderr, "weft: a line of the log is lost: %s\n", error.what());
}

void logToStandardError(LogLevel level, const std::string& text) noexcept {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  std::array<char, 20> when{};
  if (localtime_r(&now, &local) != nullptr)
    std::strftime(when.data(), when.size(), "%F %T", &local);
  std::fprintf(stderr, "[%s] weft%s: %s\n", when.data(), levelText(level), text.c_str());
}

void checkFailed(const char* condition, const char* why, const char* file, int line) noexcept {
  std::fprintf(stderr, "weft: internal error at %s:%d: %s (%s)\n", file, line, why, condition);
  std::abort();
}

}  // namespace weft::transport
