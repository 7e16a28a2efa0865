// AgentRRefs: what the program asks an agent about its RRefs, beside what torch asks it to send.
//
// Threads: any, without the GIL. In a forked child the questions throw, and the rest does nothing.
// Ownership: a view of the agent; use it while that lives.
#pragma once

#include <vector>

#include "rpc_backend/core/torch_names.h"
#include "transport/base/api.h"

namespace weft::rpc {

struct AgentParts;
struct PickledRRef;  // rpc_backend/wire/rref_wire.h
struct RRefKey;      // likewise
struct RRefRow;      // rpc_backend/rref/rref_report.h

class WEFT_API AgentRRefs {
 public:
  explicit AgentRRefs(AgentParts& parts) noexcept : parts_(parts) {}

  // A thread of this process is about to wait for a value of this worker's own: the wait ends with
  // an error when the call that creates the value fails or does not come.
  void onOwnWait(const torch::distributed::rpc::RRefId& value) const;
  // rpc.shutdown is about to wait until nobody refers to values of this worker: it does not wait
  // for those whose creation has not ended.
  void failUnfinished() const;
  // A message whose pickling failed had forked this RRef: nobody will get the fork.
  void undoFork(const PickledRRef& rref) const;
  // The values owned here that others refer to, and the references held here.
  std::vector<RRefRow> report() const;
  // Whether the value of `owner` was released because the owner was lost, though it may be back.
  bool isOrphan(const RRefKey& value, worker_id_t owner) const;
  // One warning for each value owned here that others still refer to; at most 10, then a count.
  // Call it at the end, when nobody should refer to one. `ignored`: the program does not care, so
  // they come only where the log has information, too.
  void warnAboutLeaks(bool ignored) const;

 private:
  AgentParts& parts_;
};

}  // namespace weft::rpc
