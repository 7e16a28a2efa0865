// Data that lie in their ranks' heaps: the others use them where they lie. Who has such data says
// so, and where, before the first meeting of an operation; one meeting more ends it, before which
// nobody's data are touched by their owner. An owner that gives up before has failed the group by
// then: who read what it may have changed since sees that in the last meeting, and who was about to
// write there stops, or writes where the owner no longer is.
//
// A rank believes of what others say only what lies within their heaps: a rank gone mad gives wrong
// results, or an error that names it.
#include <optional>
#include <string>

#include "c10d_plugin/shm/exchange.h"

namespace weft::collectives {

using shm::SizeTable;

bool ShmCollectives::offer(std::span<const ConstBytes> parts) {
  std::uint64_t* const places = segment_->sizes(rank_, parity_, SizeTable::kPlaces);
  for (std::size_t slot = 0; slot < parts.size(); ++slot) {
    if (parts[slot].empty()) continue;
    const std::optional<std::uint64_t> offset = heap_->offsetOf(parts[slot]);
    if (!offset) return false;
    places[slot] = *offset;
  }
  record_.direct = !parts.empty();
  return record_.direct;
}

// The next operation may write new records while the last pieces of this one are still read.
void ShmCollectives::noteOffers() {
  offers_ = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const bool direct = segment_->control(rank).records[parity_].direct;
    direct_[static_cast<std::size_t>(rank)] = direct ? 1 : 0;
    offers_ += direct ? 1 : 0;
  }
}

Result<std::byte*> ShmCollectives::offered(int rank, int slot, std::size_t bytes) {
  const std::uint64_t room = segment_->layout().heap_bytes;
  const std::uint64_t offset = told(rank, SizeTable::kPlaces, slot);
  Error error = Error::ok();
  if (offset > room || bytes > room - offset) {
    error = Error(ErrorCode::kProtocol,
                  "rank " + std::to_string(rank) + " offers " + std::to_string(bytes) +
                      " bytes at byte " + std::to_string(offset) + " of its shared tensors in " +
                      describe(record_) + ", where it has " + std::to_string(room) + " in all");
  } else {
    Result<std::byte*> heap = segment_->heap(rank);
    if (heap.ok()) return heap.value() + offset;
    error = heap.error();
  }
  segment_->fail(error);
  stopLending();
  return segment_->failure();
}

// The operation has failed: its caller may use the data for something else at once.
void ShmCollectives::stopLending() {
  while (record_.direct && !segment_->awaitWriters(rank_) && !heap_->detach()) {
  }
}

}  // namespace weft::collectives
