// Operation: which of Collectives' operations a rank runs, and what of a call it gives a meaning.
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
  kRefused,  // the rank called something that cannot be; said in shared memory only
};

// Takes any value: a peer may have written it.
const char* toString(Operation operation) noexcept;
// It has a reduction.
bool reduces(Operation operation) noexcept;
bool hasRoot(Operation operation) noexcept;

}  // namespace weft::collectives
