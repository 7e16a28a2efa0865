// Little-endian integers at any address, whatever the machine.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace weft::transport {

template <typename T>
T swapOnBigEndian(T value) noexcept {
  static_assert(std::is_unsigned_v<T>);
  if constexpr (std::endian::native == std::endian::little || sizeof(T) == 1) {
    return value;
  } else {
    T swapped = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      swapped = static_cast<T>((swapped << 8) | ((value >> (8 * i)) & 0xFF));
    }
    return swapped;
  }
}

template <typename T>
T loadLittle(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return swapOnBigEndian(value);
}

template <typename T>
void storeLittle(std::byte* to, T value) noexcept {
  value = swapOnBigEndian(value);
  std::memcpy(to, &value, sizeof(T));
}

}  // namespace weft::transport
