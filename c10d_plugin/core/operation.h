// Operation: which of Collectives' operations a rank runs, and which fields of a Call it uses.
#pragma once

#include <cstdint>

namespace weft::collectives {

enum class Operation : std::uint8_t {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kRefused,  // the rank's own arguments are impossible; in shared memory only
};

// Takes any value: a peer may have written it.
const char* toString(Operation operation) noexcept;
// It has a reduction.
bool reduces(Operation operation) noexcept;
bool hasRoot(Operation operation) noexcept;

}  // namespace weft::collectives
