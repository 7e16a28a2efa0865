// Bytes from the operating system's random source.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "transport/base/error.h"

namespace weft::transport {

// At most 256 bytes.
Error fillRandom(std::span<std::uint8_t> out);
std::string toHex(std::span<const std::uint8_t> bytes);

}  // namespace weft::transport
