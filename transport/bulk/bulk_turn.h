// What turns of reading and writing a bulk connection have in common. The result of one is an
// errno: 0: nothing is left to do; EAGAIN: go on when the stream is ready; ENODATA: the stream
// ended; else it broke.
#pragma once

#include <cstdint>

namespace weft::transport {

// Then other bulk connections get their turn.
inline constexpr std::uint64_t kBulkBytesPerTurn = std::uint64_t{8} << 20;

}  // namespace weft::transport
