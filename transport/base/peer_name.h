// How texts for people name a peer, a duration and a size.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace weft::transport {

inline std::string describePeer(const std::string& name, std::int32_t rank) {
  return "worker '" + name + "' (rank " + std::to_string(rank) + ")";
}

// "12.3 s"
inline std::string seconds(std::chrono::nanoseconds time) {
  const auto tenths = (time.count() + 50'000'000) / 100'000'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

// "1 byte", "12 bytes"
inline std::string bytesText(std::uint64_t count) {
  return std::to_string(count) + (count == 1 ? " byte" : " bytes");
}

}  // namespace weft::transport
