// DirectData: data in a rank's heap, which the other ranks use where they are.
//
// A rank offers such data before the first meeting of an operation: its record says that it does,
// and the size table kOffsets says where they are. The operation has one more meeting at its end;
// until then no owner touches its data. An owner that gives up earlier fails the group first. A
// rank that then reads changed data sees the failure in the last meeting; a rank that is about to
// write there stops, or writes to pages that the owner no longer has.
//
// Offsets are checked to be within the other rank's heap, so a rank that writes nonsense causes
// wrong results or an error that names it, no worse.
//
// Threads: the rank's operating thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "c10d_plugin/shm/segment/heap.h"
#include "c10d_plugin/shm/segment/segment.h"

namespace weft::collectives::shm {

class DirectData {
 public:
  DirectData(Segment& segment, Heap& heap, int rank);

  // A new operation, which begins in a step of this parity.
  void begin(unsigned parity) noexcept {
    parity_ = parity;
    offering_ = false;
  }
  // Offers these parts. False: they are not in the heap, or there are none.
  bool offer(std::span<const ConstBytes> parts);
  bool offering() const noexcept { return offering_; }

  // Reads which ranks offer data. Call it in the step after the first meeting: later the next
  // operation may overwrite the records.
  void learnOffers();
  bool isFrom(int rank) const noexcept { return by_rank_[static_cast<std::size_t>(rank)] != 0; }
  bool any() const noexcept { return count_ != 0; }
  bool all() const noexcept { return count_ == by_rank_.size(); }
  // The address of part `index` of what `rank` offered, in the step after the first meeting. A part
  // that is outside of that rank's heap, or cannot be mapped, ends the group.
  Result<std::byte*> find(int rank, int index, std::size_t bytes, const OpFingerprint& op);

  // Call it after the operation failed: from then on its caller may use the data for something
  // else. Waits, and logs why, for a rank that was stopped while it wrote there, if the system does
  // not give this process the memory for itself.
  void withdraw();

 private:
  Segment& segment_;
  Heap& heap_;
  const int rank_;
  unsigned parity_ = 0;
  bool offering_ = false;
  std::vector<std::uint8_t> by_rank_;
  std::size_t count_ = 0;
};

}  // namespace weft::collectives::shm
