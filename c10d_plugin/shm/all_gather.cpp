// all_gather: every rank lays out its data and copies out everybody else's.
#include "c10d_plugin/shm/exchange.h"
#include "c10d_plugin/shm/operations.h"

namespace weft::collectives::shm {

Error allGather(Context& context, const Call& call, ConstBytes in, std::span<const Bytes> out) {
  if (Error error = context.begin(call, Operation::kAllGather, in.size())) return error;
  const auto own = static_cast<std::size_t>(context.rank());
  const int size = context.size();
  if (out.size() != static_cast<std::size_t>(size)) {
    return context.refuse(std::to_string(out.size()) + " outputs for " + std::to_string(size) +
                          " ranks");
  }
  if (out[own].size() != in.size()) {
    return context.refuse("the own output has " + std::to_string(out[own].size()) + " bytes");
  }
  context.publishSizes(SizeTable::kExpected, out, true);
  return exchange(
      context, std::span(&in, 1), slotFor(context, in.size(), 1),
      [&] {
        copyOwn(in, out[own]);
        std::size_t pieces = 0;
        for (int rank = 0; rank < size; ++rank) {
          const std::size_t bytes = out[static_cast<std::size_t>(rank)].size();
          pieces = std::max(pieces, piecesFrom(context, rank, bytes, slotFor(context, bytes, 1)));
        }
        return pieces;
      },
      [&](std::size_t piece) -> Error {
        for (int rank = 0; rank < size; ++rank) {
          if (rank == context.rank()) continue;
          const Bytes& part = out[static_cast<std::size_t>(rank)];
          const BufferSlot slot = slotFor(context, part.size(), 1);
          if (Error error = readPiece(context, rank, slot, 0, piece, part)) return error;
        }
        return Error::ok();
      });
}

}  // namespace weft::collectives::shm
