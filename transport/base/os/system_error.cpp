#include "transport/base/os/system_error.h"

#include <cstring>

namespace weft::transport {

std::string errnoName(int number) {
  const char* name = ::strerrorname_np(number);
  return name != nullptr ? std::string(name) : "errno " + std::to_string(number);
}

std::string errnoText(int number) { return errnoName(number) + ": " + ::strerrordesc_np(number); }

Error systemError(const std::string& operation, int number) {
  return {ErrorCode::kSystem, operation + " failed (" + errnoText(number) + ")"};
}

}  // namespace weft::transport
