// OpFingerprint: what the ranks of a group must agree on in one operation. It travels as the label
// of every message, so that a rank which called something else is found by the first message that
// meets it, and both sides are named.
#pragma once

#include <cstdint>
#include <string>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/mailbox.h"
#include "c10d_plugin/core/operation.h"

namespace weft::collectives {

struct OpFingerprint {
  Operation operation = Operation::kBarrier;
  Element element = Element::kBytes;
  Reduction reduction = Reduction::kSum;
  int root = 0;
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;  // where all ranks have the same

  Label label() const;
  static OpFingerprint of(const Label& label);
  // "all_reduce of 4096 bytes of float32 by sum (operation 7)"
  std::string describe() const;
};

}  // namespace weft::collectives
