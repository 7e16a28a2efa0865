// CallRecord: what a rank asked for, in shared memory for the others to compare. Fields, not a
// hash, so that an error can name both sides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/operation.h"

namespace weft::collectives::shm {

// A rank's parts of the operation for each rank: what it sends, what it expects; and where in its
// heap what it offers lies, in the order of its slots, if the record says that it lies there.
enum class SizeTable : std::uint8_t { kSent, kExpected, kPlaces };
inline constexpr unsigned kSizeTables = 3;

struct CallRecord {
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;   // of the rank's own part
  std::uint64_t shapes = 0;  // a digest of the size tables, where all ranks' must be equal
  std::int32_t root = -1;
  Operation operation = Operation::kBarrier;
  Element element = Element::kBytes;
  Reduction reduction = Reduction::kSum;
  bool direct = false;  // this rank's data lies in its heap, and is to be read there

  friend bool operator==(const CallRecord&, const CallRecord&) = default;
};

// "all_reduce (operation 7) of 16 bytes of float32, sum". Takes any bytes: a peer wrote them.
std::string describe(const CallRecord& record);

// Which of an operation's fields have a meaning that must be equal on all ranks.
bool sameCall(const CallRecord& a, const CallRecord& b) noexcept;

// A digest of one more size.
constexpr std::uint64_t digest(std::uint64_t before, std::uint64_t size) noexcept {
  return (before ^ size) * 0x9E3779B97F4A7C15ULL + (before >> 29);
}

}  // namespace weft::collectives::shm
