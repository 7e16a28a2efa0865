// all_to_all: every rank lays out a part for each of the others and copies out its own parts.
#include "c10d_plugin/shm/exchange.h"
#include "c10d_plugin/shm/operations.h"

namespace weft::collectives::shm {

Error allToAll(Context& context, const Call& call, std::span<const ConstBytes> in,
               std::span<const Bytes> out) {
  if (Error error = context.begin(call, Operation::kAllToAll, OpFingerprint::kVaries)) return error;
  const int size = context.size();
  const auto ranks = static_cast<std::size_t>(size);
  if (in.size() != ranks || out.size() != ranks) {
    return context.refuse(std::to_string(in.size()) + " inputs and " + std::to_string(out.size()) +
                          " outputs for " + std::to_string(size) + " ranks");
  }
  const auto own = static_cast<std::size_t>(context.rank());
  context.publishSizes(SizeTable::kSent, in, false);
  context.publishSizes(SizeTable::kExpected, out, false);
  const std::span<const ConstBytes> parts = partsForOthers(context, in);
  std::vector<BufferSlot> slots(ranks);
  return exchange(
      context, parts, slotFor(context, largest(parts), size - 1),
      [&] {
        copyOwn(in[own], out[own]);
        std::size_t pieces = 0;
        for (int rank = 0; rank < size; ++rank) {
          std::size_t most = 0;
          for (int to = 0; to < size; ++to) {
            if (to != rank) most = std::max(most, context.sizeFrom(rank, SizeTable::kSent, to));
          }
          BufferSlot& slot = slots[static_cast<std::size_t>(rank)];
          slot = slotFor(context, most, size - 1);
          pieces = std::max(pieces, piecesFrom(context, rank, most, slot));
        }
        return pieces;
      },
      [&](std::size_t piece) -> Error {
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          if (rank == own) continue;
          const int writer = static_cast<int>(rank);
          const int index = partIndex(context.rank(), writer);
          if (Error error = readPiece(context, writer, slots[rank], index, piece, out[rank]))
            return error;
        }
        return Error::ok();
      });
}

}  // namespace weft::collectives::shm
