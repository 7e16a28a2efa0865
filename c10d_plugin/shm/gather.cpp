// Every rank's data to one, or to all.
#include "c10d_plugin/shm/exchange.h"

namespace weft::collectives {

using shm::SizeTable;

Error ShmCollectives::allGather(const Call& call, ConstBytes in, std::span<const Bytes> out) {
  if (Error error = open(call, Operation::kAllGather, in.size())) return error;
  const auto own = static_cast<std::size_t>(rank_);
  if (out.size() != static_cast<std::size_t>(size_)) {
    return refuse(std::to_string(out.size()) + " outputs for " + std::to_string(size_) + " ranks");
  }
  if (out[own].size() != in.size()) {
    return refuse("the own output has " + std::to_string(out[own].size()) + " bytes");
  }
  tell(SizeTable::kExpected, out, true);
  return exchange(
      std::span(&in, 1), bufferSlotFor(in.size(), 1),
      [&] {
        copyOwn(in, out[own]);
        std::size_t pieces = 0;
        for (int rank = 0; rank < size_; ++rank) {
          const std::size_t bytes = out[static_cast<std::size_t>(rank)].size();
          pieces = std::max(pieces, piecesFrom(rank, bytes, bufferSlotFor(bytes, 1)));
        }
        return pieces;
      },
      [&](std::size_t piece) -> Error {
        for (int rank = 0; rank < size_; ++rank) {
          const Bytes& part = out[static_cast<std::size_t>(rank)];
          if (rank == rank_) continue;
          if (Error error = readPiece(rank, bufferSlotFor(part.size(), 1), 0, piece, part))
            return error;
        }
        return Error::ok();
      });
}

Error ShmCollectives::gather(const Call& call, ConstBytes in, std::span<const Bytes> out,
                             int root) {
  if (Error error = open(call, Operation::kGather, in.size(), root)) return error;
  if (const std::string why = checkRoot(root); !why.empty()) return refuse(why);
  const bool is_root = rank_ == root;
  if (is_root && out.size() != static_cast<std::size_t>(size_)) {
    return refuse("the root has " + std::to_string(out.size()) + " outputs for " +
                  std::to_string(size_) + " ranks");
  }
  if (is_root) tell(SizeTable::kExpected, out, false);
  return exchange(
      std::span(&in, is_root ? 0 : 1), is_root ? BufferSlot{} : bufferSlotFor(in.size(), 1),
      [&] {
        if (is_root) copyOwn(in, out[static_cast<std::size_t>(rank_)]);
        std::size_t pieces = 0;
        for (int rank = 0; rank < size_; ++rank) {
          if (rank == root) continue;
          const std::size_t bytes = told(root, SizeTable::kExpected, rank);
          pieces = std::max(pieces, piecesFrom(rank, bytes, bufferSlotFor(bytes, 1)));
        }
        return pieces;
      },
      [&](std::size_t piece) -> Error {
        for (int rank = 0; is_root && rank < size_; ++rank) {
          const Bytes& part = out[static_cast<std::size_t>(rank)];
          if (rank == root) continue;
          if (Error error = readPiece(rank, bufferSlotFor(part.size(), 1), 0, piece, part))
            return error;
        }
        return Error::ok();
      });
}

}  // namespace weft::collectives
