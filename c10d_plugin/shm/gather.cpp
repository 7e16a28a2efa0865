// gather: every rank but the root lays out its data, and the root copies all of it out.
#include "c10d_plugin/shm/exchange.h"
#include "c10d_plugin/shm/operations.h"

namespace weft::collectives::shm {

Error gather(Context& context, const Call& call, ConstBytes in, std::span<const Bytes> out,
             int root) {
  if (Error error = context.begin(call, Operation::kGather, in.size(), root)) return error;
  const int size = context.size();
  const bool is_root = context.rank() == root;
  if (is_root && out.size() != static_cast<std::size_t>(size)) {
    return context.refuse("the root has " + std::to_string(out.size()) + " outputs for " +
                          std::to_string(size) + " ranks");
  }
  if (is_root) context.publishSizes(SizeTable::kExpected, out, false);
  return exchange(
      context, std::span(&in, is_root ? 0 : 1),
      is_root ? BufferSlot{} : slotFor(context, in.size(), 1),
      [&] {
        if (is_root) copyOwn(in, out[static_cast<std::size_t>(root)]);
        std::size_t pieces = 0;
        for (int rank = 0; rank < size; ++rank) {
          if (rank == root) continue;
          const std::size_t bytes = context.sizeFrom(root, SizeTable::kExpected, rank);
          pieces = std::max(pieces, piecesFrom(context, rank, bytes, slotFor(context, bytes, 1)));
        }
        return pieces;
      },
      [&](std::size_t piece) -> Error {
        for (int rank = 0; is_root && rank < size; ++rank) {
          if (rank == root) continue;
          const Bytes& part = out[static_cast<std::size_t>(rank)];
          const BufferSlot slot = slotFor(context, part.size(), 1);
          if (Error error = readPiece(context, rank, slot, 0, piece, part)) return error;
        }
        return Error::ok();
      });
}

}  // namespace weft::collectives::shm
