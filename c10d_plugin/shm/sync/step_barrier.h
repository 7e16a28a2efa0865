// StepBarrier: how the ranks of a segment keep step. Time goes in rounds; next() ends one, and
// returns when all ranks have ended it. So all that any rank wrote in a round is seen by all in the
// next, and ranks are never more than the end of one round apart.
//
// What follows from that for buffers, of which each rank has three, used in turn: in round n a
// rank writes its buffer n, reads the others' buffers n-1 and n-2, and writes into its own buffer
// n-1 where nobody reads before round n+1. Nobody is in round n+1 before all are through with n.
//
// Waiting: a search of some microseconds that adapts to whether it pays, with yields so that more
// ranks than cores get on; then sleep on a futex. (Keeping the core for the first 20 us instead was
// tried: ten times slower where a busy machine puts two ranks on one core, as it does.) A rank that
// ends a round makes a system call only if somebody sleeps. A sleeper looks up every 100 ms: for
// the end of the group, the deadline and the dead.
//
// Threads: the rank's operating thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/shm/segment/call_record.h"
#include "c10d_plugin/shm/segment/segment.h"
#include "transport/base/spin.h"

namespace weft::collectives::shm {

class StepBarrier {
 public:
  StepBarrier(Segment& segment, int rank);

  std::uint64_t number() const noexcept { return number_; }

  // `first`: of an operation, where ranks come when their programs get there; later they come soon.
  // `call` is for the error's text. kTimeout and kPeerLost end the group for all ranks.
  // OK: all ranks have ended the round, and the group had not failed when they had: a rank that
  // gave up before it ended this round is seen here, so what was read from it until now is whole.
  Error next(const CallRecord& call, Deadline deadline, bool first);

 private:
  bool hasEnded(int rank) const noexcept;
  bool allHaveEnded() noexcept;
  Error outcome() const;
  Error sleep(const CallRecord& call, Deadline deadline, Deadline began);
  Error lookForTrouble(const CallRecord& call, Deadline began);
  Error endGroup(const Error& reason);
  std::vector<int> missing() const;

  Segment& segment_;
  const int rank_;
  const int size_;
  std::uint64_t number_ = 0;
  Word& own_progress_;
  Word& own_sleepers_;
  std::vector<const Word*> progress_;  // by rank
  int look_at_ = 0;                    // ranks below it have ended the round
  // Whether it pays to search differs.
  transport::AdaptiveSpin first_spin_;
  transport::AdaptiveSpin later_spin_;
};

}  // namespace weft::collectives::shm
