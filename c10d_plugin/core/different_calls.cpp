#include "c10d_plugin/core/different_calls.h"

#include "c10d_plugin/core/op_fingerprint.h"

namespace weft::collectives {

std::string differentCalls(int their_rank, const Label& theirs, int own_rank, const Label& ours) {
  const std::string their_call = OpFingerprint::of(theirs).describe();
  const std::string own_call = OpFingerprint::of(ours).describe();
  std::string text = "the ranks called different operations: rank " + std::to_string(their_rank) +
                     " called " + their_call + ", rank " + std::to_string(own_rank) + " called " +
                     own_call;
  if (theirs == ours) return text + ", which takes no such message";
  return their_call == own_call ? text + ", with parts of other sizes" : text;
}

}  // namespace weft::collectives
