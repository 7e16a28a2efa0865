// The next multiple of a unit.
#pragma once

#include <cstdint>

namespace weft::transport {

constexpr std::uint64_t roundUp(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace weft::transport
