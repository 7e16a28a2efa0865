// Bytes for the tests of streams that change them on their way, in pieces of random sizes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "transport/io/stream.h"

namespace weft::transport {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937;

inline std::size_t draw(Random& random, std::size_t most) {
  return std::uniform_int_distribution<std::size_t>(0, most)(random);
}

inline Bytes randomBytes(Random& random, std::size_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

// `bytes` as some iovecs.
inline std::vector<iovec> cut(Random& random, Bytes& bytes, std::size_t from) {
  std::vector<iovec> parts;
  while (from < bytes.size() && parts.size() < 40) {
    const std::size_t some =
        std::min(bytes.size() - from, draw(random, std::size_t{1} << draw(random, 19)));
    parts.push_back({bytes.data() + from, some});
    from += some;
  }
  return parts;
}

inline void writeAll(Stream& stream, Bytes bytes) {
  iovec part{bytes.data(), bytes.size()};
  while (part.iov_len > 0) {
    const IoResult result = stream.write(std::span(&part, 1), {});
    ASSERT_EQ(result.error, 0);
    part = {static_cast<std::byte*>(part.iov_base) + result.count, part.iov_len - result.count};
  }
}

}  // namespace weft::transport
