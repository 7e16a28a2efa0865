// What the bulk thread did in one turn of reading or writing a bulk connection.
#pragma once

#include <cstdint>

namespace weft::transport {

// Then other bulk connections get their turn.
inline constexpr std::uint64_t kBulkBytesPerTurn = std::uint64_t{8} << 20;

struct BulkTurn {
  enum class Kind : std::uint8_t {
    kDone,     // nothing is left to do
    kBlocked,  // go on when the stream is ready
    kBroken,   // `error`: errno, 0: the stream ended
  };
  Kind kind = Kind::kDone;
  int error = 0;
};

}  // namespace weft::transport
