#include "transport/base/log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "transport/base/check.h"

namespace weft::transport {
namespace {

void toStandardError(LogLevel /*level*/, const std::string& text) {
  std::fprintf(stderr, "weft: %s\n", text.c_str());
}

std::atomic<LogSink> g_sink{&toStandardError};
std::atomic<LogLevel> g_level{LogLevel::kWarning};

}  // namespace

void setLogSink(LogSink sink) noexcept { g_sink.store(sink != nullptr ? sink : &toStandardError); }
void setLogLevel(LogLevel level) noexcept { g_level.store(level); }
bool logEnabled(LogLevel level) noexcept {
  return level >= g_level.load(std::memory_order_relaxed);
}

void log(LogLevel level, const std::string& text) noexcept {
  if (logEnabled(level)) g_sink.load()(level, text);
}

void checkFailed(const char* condition, const char* why, const char* file, int line) noexcept {
  std::fprintf(stderr, "weft: internal error at %s:%d: %s (%s)\n", file, line, why, condition);
  std::abort();
}

}  // namespace weft::transport
