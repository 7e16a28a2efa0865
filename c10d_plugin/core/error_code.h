// Error codes that another process wrote.
#pragma once

#include <cstdint>

#include "transport/base/error.h"

namespace weft::collectives {

// A code that is unknown, or no failure's, is itself a protocol error.
inline transport::ErrorCode errorCodeFrom(std::uint64_t code) {
  using transport::ErrorCode;
  const bool known = code > static_cast<std::uint64_t>(ErrorCode::kOk) &&
                     code <= static_cast<std::uint64_t>(ErrorCode::kInterrupted);
  return known ? static_cast<ErrorCode>(code) : ErrorCode::kProtocol;
}

}  // namespace weft::collectives
