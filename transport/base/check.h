// Assertions that stay on in every build: a broken invariant of the transport ends the
// process with a line that says where, instead of corrupting somebody's messages.
#pragma once

namespace weft::transport {

[[noreturn]] void checkFailed(const char* condition, const char* why, const char* file,
                              int line) noexcept;

}  // namespace weft::transport

#define WEFT_CHECK(condition, why) \
  (static_cast<bool>(condition)    \
       ? static_cast<void>(0)      \
       : ::weft::transport::checkFailed(#condition, why, __FILE__, __LINE__))
