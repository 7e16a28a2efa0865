// StepBarrier: how the ranks of a segment keep step. next() ends a step and returns when all ranks
// have ended it. So what any rank wrote in a step is seen by all in the next, and ranks are never
// more than the end of one step apart.
//
// Consequence for buffers, of which each rank has three, used in turn: in step n a rank writes its
// buffer n, reads the others' buffers n-1 and n-2, and writes into its own buffer n-1 where nobody
// reads before step n+1. Nobody is in step n+1 before all have ended step n.
//
// Waiting: a spin that adapts to whether it pays and yields, so that more ranks than cores make
// progress; then a sleep on a futex. A rank that ends a step makes a system call only if another
// sleeps. A sleeper wakes every 50 ms to look for the end of the group, the deadline, dead
// ranks and Ctrl-C.
//
// Threads: the rank's operating thread only; awaited() and waitTimes() may be asked by any.
#pragma once

#include <cstdint>
#include <vector>

#include "c10d_plugin/core/collectives.h"
#include "c10d_plugin/core/op_fingerprint.h"
#include "c10d_plugin/core/wait_times.h"
#include "c10d_plugin/shm/segment/segment.h"
#include "transport/base/spin.h"

namespace weft::collectives::shm {

class StepBarrier {
 public:
  StepBarrier(Segment& segment, int rank);

  std::uint64_t number() const noexcept { return number_; }

  // `first`: the first step of an operation, to which ranks come when their programs do; to later
  // ones they come soon. `op` is for the error's text. kTimeout, kPeerLost and
  // kInterrupted end the group for all. An error also if a rank gave up before it ended this step;
  // so without one, what was read from the others until now is whole.
  Error next(const OpFingerprint& op, Deadline deadline, bool first);

  // The ranks that have not ended this rank's step.
  std::vector<int> awaited() const;
  const WaitTimes& waitTimes() const noexcept { return wait_times_; }

 private:
  bool hasEnded(int rank) const noexcept {
    return hasEnded(rank, static_cast<std::uint32_t>(number_));
  }
  bool hasEnded(int rank, std::uint32_t step) const noexcept;
  bool allHaveEnded() noexcept;
  Error outcome() const;
  Error sleep(const OpFingerprint& op, Deadline deadline, Deadline began);
  Error findTrouble(const OpFingerprint& op, Deadline began);
  Error interruption(const OpFingerprint& op);
  Error endGroup(const Error& reason);

  Segment& segment_;
  const int rank_;
  const int size_;
  std::uint64_t number_ = 0;
  Word& own_progress_;
  Word& own_sleepers_;
  std::vector<const Word*> progress_;  // by rank
  int look_at_ = 0;                    // ranks below it have ended the step
  WaitTimes wait_times_;
  // Whether a spin pays differs between the two.
  transport::AdaptiveSpin first_spin_;
  transport::AdaptiveSpin later_spin_;
};

}  // namespace weft::collectives::shm
