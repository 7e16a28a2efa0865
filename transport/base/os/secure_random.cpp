#include "transport/base/os/secure_random.h"

#include <unistd.h>

#include <cerrno>

#include "transport/base/os/system_error.h"

namespace weft::transport {

Error fillRandom(std::span<std::uint8_t> out) {
  if (::getentropy(out.data(), out.size()) != 0) return systemError("getentropy", errno);
  return Error::ok();
}

std::string toHex(std::span<const std::uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

}  // namespace weft::transport
