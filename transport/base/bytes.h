// Little-endian integers at any address.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

namespace weft::transport {

static_assert(std::endian::native == std::endian::little,
              "what is sent is little endian; a big-endian host needs byte swaps");

template <typename T>
T loadLittle(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void storeLittle(std::byte* to, T value) noexcept {
  std::memcpy(to, &value, sizeof(T));
}

}  // namespace weft::transport
