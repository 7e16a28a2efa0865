#include "transport/base/secure_random.h"

#include <sys/random.h>

#include <cerrno>

#include "transport/base/system_error.h"

namespace weft::transport {

Error fillRandom(std::span<std::uint8_t> out) {
  std::size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t got = ::getrandom(out.data() + filled, out.size() - filled, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      return systemError("getrandom", errno);
    }
    filled += static_cast<std::size_t>(got);
  }
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
