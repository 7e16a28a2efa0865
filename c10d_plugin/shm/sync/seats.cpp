#include "c10d_plugin/shm/sync/seats.h"

#include <sched.h>

namespace weft::collectives::shm {
namespace {

constexpr std::uint64_t kLookEvery = 8;  // rounds

}  // namespace

Seats::Seats(Segment& segment, int rank)
    : segment_(segment), rank_(rank), size_(segment.layout().ranks) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  const int processors = CPU_COUNT(&allowed);
  if (processors > 1 && processors <= size_) share_ = (size_ + processors - 1) / processors;
}

void Seats::say() noexcept {
  if (share_ == 0) return;
  segment_.control(rank_).processor.store(static_cast<std::uint32_t>(::sched_getcpu()),
                                          std::memory_order_relaxed);
}

int Seats::seatOf(int rank) const noexcept {
  return static_cast<int>(segment_.control(rank).processor.load(std::memory_order_relaxed));
}

int Seats::ranksOn(int processor) const noexcept {
  int ranks = 0;
  for (int rank = 0; rank < size_; ++rank)
    ranks += seatOf(rank) == processor ? 1 : 0;
  return ranks;
}

void Seats::spread(std::uint64_t number) noexcept {
  if (share_ < 1 || number % kLookEvery != 0) return;
  const int seat = seatOf(rank_);
  const int crowd = ranksOn(seat);
  if (crowd > share_ && itsTurn(seat, crowd, number / kLookEvery)) move(crowd);
}

// One of the crowd at a time, or all would move.
bool Seats::itsTurn(int seat, int crowd, std::uint64_t number) const noexcept {
  int place = 0;
  for (int rank = 0; rank < rank_; ++rank)
    place += seatOf(rank) == seat ? 1 : 0;
  return number % static_cast<std::uint64_t>(crowd) == static_cast<std::uint64_t>(place);
}

void Seats::move(int crowd) noexcept {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  int best = -1;
  int fewest = crowd - 1;  // one rank less is no better: it would be one more with this one
  for (int processor = 0; processor < CPU_SETSIZE && fewest > 0; ++processor) {
    if (!CPU_ISSET(processor, &allowed)) continue;
    const int ranks = ranksOn(processor);
    if (ranks >= fewest) continue;
    best = processor;
    fewest = ranks;
  }
  if (best < 0) return;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(best, &only);
  if (::sched_setaffinity(0, sizeof(only), &only) == 0)
    (void)::sched_setaffinity(0, sizeof(allowed), &allowed);
}

}  // namespace weft::collectives::shm
