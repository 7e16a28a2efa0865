// Seats: spreads the ranks of a group over the processors where there are no more processors than
// ranks.
//
// Ranks that share a processor take turns, so that a small operation takes as long as the ranks of
// the most crowded one together. The system needs milliseconds to see that three of four ranks are
// on one of two processors, which is hundreds of barriers at twice their time. Ranks know better:
// each says where it ran when it ended a round, and one whose processor has more than its share
// moves to one that has fewer. It restricts itself to that one for an instant and then allows
// itself what it was allowed before: nothing is pinned, and the system may move it again.
//
// With more processors than ranks it does nothing: the system has idle ones to choose from, and
// knows which are near.
//
// Threads: the rank's operating thread only. No failure: a rank that may not move stays.
#pragma once

#include <cstdint>

#include "c10d_plugin/shm/segment/segment.h"

namespace weft::collectives::shm {

class Seats {
 public:
  Seats(Segment& segment, int rank);

  // Before the rank ends a round: where it runs, for the others.
  void say() noexcept;
  // While it waits in round `number`, now and then: moves if it is this rank's turn to.
  void spread(std::uint64_t number) noexcept;

 private:
  int seatOf(int rank) const noexcept;
  int ranksOn(int processor) const noexcept;
  bool itsTurn(int seat, int crowd, std::uint64_t number) const noexcept;
  void move(int crowd) noexcept;

  Segment& segment_;
  const int rank_;
  const int size_;
  int share_ = 0;  // ranks that one processor has at most when all are spread; 0: leave it
};

}  // namespace weft::collectives::shm
