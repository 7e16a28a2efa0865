#include "c10d_plugin/shm/exchange.h"

namespace weft::collectives {

using shm::SizeTable;

Error ShmCollectives::allToAll(const Call& call, std::span<const ConstBytes> in,
                               std::span<const Bytes> out) {
  if (Error error = open(call, Operation::kAllToAll, 0)) return error;
  const auto ranks = static_cast<std::size_t>(size_);
  if (in.size() != ranks || out.size() != ranks) {
    return refuse(std::to_string(in.size()) + " inputs and " + std::to_string(out.size()) +
                  " outputs for " + std::to_string(size_) + " ranks");
  }
  const auto own = static_cast<std::size_t>(rank_);
  tell(SizeTable::kSent, in, false);
  tell(SizeTable::kExpected, out, false);
  const std::span<const ConstBytes> parts = othersOf(in);
  std::vector<BufferSlot> places(ranks);
  return exchange(
      parts, bufferSlotFor(largest(parts), size_ - 1),
      [&] {
        copyOwn(in[own], out[own]);
        std::size_t pieces = 0;
        for (int rank = 0; rank < size_; ++rank) {
          std::size_t most = 0;
          for (int to = 0; to < size_; ++to) {
            if (to != rank) most = std::max(most, told(rank, SizeTable::kSent, to));
          }
          BufferSlot& place = places[static_cast<std::size_t>(rank)];
          place = bufferSlotFor(most, size_ - 1);
          pieces = std::max(pieces, piecesFrom(rank, most, place));
        }
        return pieces;
      },
      [&](std::size_t piece) -> Error {
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          if (rank == own) continue;
          const int writer = static_cast<int>(rank);
          if (Error error =
                  readPiece(writer, places[rank], slotOf(rank_, writer), piece, out[rank])) {
            return error;
          }
        }
        return Error::ok();
      });
}

}  // namespace weft::collectives
