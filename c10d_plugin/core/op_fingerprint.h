// OpFingerprint: what the ranks of a group must agree on in one operation. Messages carry it as
// their label, shared memory as a field of each rank's control block; either way a rank that called
// something else is found before a result is written, and the error names both calls.
#pragma once

#include <cstdint>
#include <string>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/mailbox.h"

namespace weft::collectives {

// Which of Collectives' operations a rank runs.
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

// An operation's number: the lowest bits of its sequence, and of Call::turn. The tags of messages
// contain it. Between hosts, the bits above it say how the data are cut: ranks that differ there
// meet, and find that they differ.
inline constexpr unsigned kSequenceBits = 40;

// Tells one list of sizes from another.
class SizesDigest {
 public:
  void add(std::uint64_t size) noexcept { state_ = (state_ ^ size) * 0x9E3779B97F4A7C15U; }
  std::uint32_t value() const noexcept { return static_cast<std::uint32_t>(state_ >> 32U); }
  bool operator==(const SizesDigest&) const = default;

 private:
  std::uint64_t state_ = 1;
};

struct OpFingerprint {
  // Instead of a number of bytes: the operation has none that describes all ranks.
  static constexpr std::uint64_t kVaries = ~std::uint64_t{0};

  Operation operation = Operation::kBarrier;
  Element element = Element::kBytes;
  Reduction reduction = Reduction::kSum;
  std::uint8_t variant = 0;        // Call's
  std::int32_t root_or_sizes = 0;  // without a root: a digest of the sizes (Call::sizes_digest)
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;  // of the rank's own part

  Label label() const;
  static OpFingerprint of(const Label& label);
  static OpFingerprint of(Operation operation, const Call& call, std::uint64_t bytes,
                          int root = 0) {
    return {operation,
            call.element,
            call.reduction,
            call.variant,
            hasRoot(operation) ? root : static_cast<std::int32_t>(call.sizes_digest),
            call.sequence,
            bytes};
  }
  // "all_reduce of 4096 bytes of float32 by sum (operation 7)". Takes any values: a peer may have
  // written them.
  std::string describe() const;
  // Whether all fields that mean something in this operation are equal. False for a refused call.
  bool agreesWith(const OpFingerprint& other) const noexcept;
};

// "the ranks called different operations: rank 2 called …, rank 0 called …". The labels are those
// of two OpFingerprints: `theirs` may be a message's that the operation `ours` cannot take.
std::string differentCalls(int their_rank, const Label& theirs, int own_rank, const Label& ours);

// Why `bytes` bytes cannot be reduced in this operation; empty: they can.
std::string whyNotReducible(const OpFingerprint& op, std::size_t bytes);

}  // namespace weft::collectives
