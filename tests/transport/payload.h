// Buffers that show whether they arrived as they were sent.
#pragma once

#include <cstring>

#include "tests/transport/recorder.h"

namespace weft::transport {

inline std::uint64_t checksum(const OwnedBuffer& buffer) {
  std::uint64_t sum = buffer.size;
  std::size_t at = 0;
  for (; at + 8 <= buffer.size; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, buffer.data + at, 8);
    sum = (sum ^ word) * 0x9E3779B97F4A7C15U;
    sum ^= sum >> 29;
  }
  for (; at < buffer.size; ++at)
    sum = sum * 31 + static_cast<std::uint64_t>(buffer.data[at]);
  return sum;
}

inline OwnedBuffer randomBuffer(std::size_t size, unsigned seed) {
  OwnedBuffer buffer = newBuffer(size);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15U + 1;
  std::size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(buffer.data + at, &state, 8);
  }
  for (; at < size; ++at)
    buffer.data[at] = static_cast<std::byte>(at);
  return buffer;
}

}  // namespace weft::transport
