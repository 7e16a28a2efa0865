// One rank's data to all: broadcast, and scatter, where each gets another part.
#include "c10d_plugin/shm/exchange.h"

namespace weft::collectives {

using shm::SizeTable;

Error ShmCollectives::broadcast(const Call& call, Bytes data, int root) {
  if (Error error = open(call, Operation::kBroadcast, data.size(), root)) return error;
  if (const std::string why = checkRoot(root); !why.empty()) return refuse(why);
  BufferSlot place = bufferSlotFor(data.size(), 1);
  if (!place.small) {
    // Some pieces, so that the root writes one while the others read the one before.
    constexpr std::size_t kLeast = std::size_t{128} << 10;
    const std::size_t quarter = shm::roundUp(data.size() / 4, shm::kCacheLine);
    place.piece = std::min(place.piece, std::max(quarter, kLeast));
  }
  const ConstBytes part = data;
  const bool is_root = rank_ == root;
  return exchange(
      std::span(&part, is_root ? 1 : 0), is_root ? place : BufferSlot{},
      [&] { return piecesFrom(root, data.size(), place); },
      [&](std::size_t piece) {
        return is_root ? Error::ok() : readPiece(root, place, 0, piece, data);
      });
}

Error ShmCollectives::scatter(const Call& call, std::span<const ConstBytes> in, Bytes out,
                              int root) {
  if (Error error = open(call, Operation::kScatter, out.size(), root)) return error;
  if (const std::string why = checkRoot(root); !why.empty()) return refuse(why);
  const bool is_root = rank_ == root;
  if (is_root && in.size() != static_cast<std::size_t>(size_)) {
    return refuse("the root has " + std::to_string(in.size()) + " parts for " +
                  std::to_string(size_) + " ranks");
  }
  if (is_root) tell(SizeTable::kSent, in, false);
  const std::span<const ConstBytes> parts = is_root ? othersOf(in) : std::span<const ConstBytes>();
  const BufferSlot own = is_root ? bufferSlotFor(largest(parts), size_ - 1) : BufferSlot{};
  BufferSlot place;
  return exchange(
      parts, own,
      [&] {
        if (is_root) copyOwn(in[static_cast<std::size_t>(rank_)], out);
        std::size_t most = 0;
        for (int rank = 0; rank < size_; ++rank) {
          if (rank != root) most = std::max(most, told(root, SizeTable::kSent, rank));
        }
        place = bufferSlotFor(most, size_ - 1);
        return piecesFrom(root, most, place);
      },
      [&](std::size_t piece) {
        return is_root ? Error::ok() : readPiece(root, place, slotOf(rank_, root), piece, out);
      });
}

}  // namespace weft::collectives
