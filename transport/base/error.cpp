#include "transport/base/error.h"

#include <cstring>

#include "transport/base/system_error.h"

namespace weft::transport {

const char* toString(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kOk:
      return "ok";
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kUnknownPeer:
      return "unknown peer";
    case ErrorCode::kConnectFailed:
      return "connect failed";
    case ErrorCode::kAuthFailed:
      return "authentication failed";
    case ErrorCode::kProtocol:
      return "protocol error";
    case ErrorCode::kLimitExceeded:
      return "limit exceeded";
    case ErrorCode::kPeerClosed:
      return "peer closed";
    case ErrorCode::kPeerLost:
      return "peer lost";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kShutdown:
      return "shutting down";
    case ErrorCode::kSystem:
      return "system error";
  }
  return "unknown error";
}

std::string errnoName(int number) {
  const char* name = ::strerrorname_np(number);
  return name != nullptr ? std::string(name) : "errno " + std::to_string(number);
}

std::string errnoText(int number) { return errnoName(number) + ": " + ::strerrordesc_np(number); }

Error systemError(const std::string& operation, int number) {
  return {ErrorCode::kSystem, operation + " failed (" + errnoText(number) + ")"};
}

}  // namespace weft::transport
