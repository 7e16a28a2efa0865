// How texts for people give a duration.
#pragma once

#include <chrono>
#include <string>

namespace weft::transport {

// "12.3 s"
inline std::string seconds(std::chrono::nanoseconds time) {
  const auto tenths = (time.count() + 50'000'000) / 100'000'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace weft::transport
