#include "c10d_plugin/shm/direct_data.h"

#include <optional>
#include <string>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/thrown.h"

namespace weft::collectives::shm {

DirectData::DirectData(Segment& segment, Heap& heap, int rank)
    : segment_(segment),
      heap_(heap),
      rank_(rank),
      by_rank_(static_cast<std::size_t>(segment.layout().ranks)) {}

bool DirectData::offer(std::span<const ConstBytes> parts) {
  std::uint64_t* const offsets = segment_.sizes(rank_, parity_, SizeTable::kOffsets);
  for (std::size_t index = 0; index < parts.size(); ++index) {
    if (parts[index].empty()) continue;
    const std::optional<std::uint64_t> offset = heap_.offsetOf(parts[index]);
    if (!offset) return false;
    offsets[index] = *offset;
  }
  offering_ = !parts.empty();
  return offering_;
}

void DirectData::learnOffers() {
  count_ = 0;
  for (std::size_t rank = 0; rank < by_rank_.size(); ++rank) {
    const bool offers = segment_.control(static_cast<int>(rank)).records[parity_].direct;
    by_rank_[rank] = offers ? 1 : 0;
    count_ += offers ? 1 : 0;
  }
}

Result<std::byte*> DirectData::find(int rank, int index, std::size_t bytes,
                                    const OpFingerprint& op) {
  const std::uint64_t room = segment_.layout().heap_bytes;
  const std::uint64_t offset = segment_.sizes(rank, parity_, SizeTable::kOffsets)[index];
  Error error;
  if (offset > room || bytes > room - offset) {
    error = {ErrorCode::kProtocol,
             "rank " + std::to_string(rank) + " offers " + std::to_string(bytes) +
                 " bytes at byte " + std::to_string(offset) + " of its shared tensors in " +
                 op.describe() + ", where it has " + std::to_string(room) + " in all"};
  } else {
    Result<std::byte*> heap = segment_.heap(rank);
    if (heap.ok()) return heap.value() + offset;
    error = heap.error();
  }
  segment_.fail(error);
  withdraw();
  return segment_.failure();
}

void DirectData::withdraw() {
  bool told = false;
  // Until no writer is left, or this heap is private; each turn waits for a while. Without an end:
  // bytes that come later would be in what the caller makes of its memory.
  while (offering_ && !segment_.awaitWriters(rank_) && !heap_.detach()) {
    if (std::exchange(told, true)) continue;
    static_cast<void>(transport::thrownBy([&] {  // there may be no memory for the text
      transport::log(transport::LogLevel::kWarning,
                     "process group: an operation of rank " + std::to_string(rank_) +
                         " has failed, and ends once another rank goes on or ends, which was "
                         "stopped while it wrote into this one's tensors: the system refuses to "
                         "make their memory private");
    }));
  }
}

}  // namespace weft::collectives::shm
