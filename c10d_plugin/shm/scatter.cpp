// scatter: the root lays out a part for each of the others, who copy theirs out.
#include "c10d_plugin/shm/exchange.h"
#include "c10d_plugin/shm/operations.h"

namespace weft::collectives::shm {

Error scatter(Context& context, const Call& call, std::span<const ConstBytes> in, Bytes out,
              int root) {
  if (Error error = context.begin(call, Operation::kScatter, out.size(), root)) return error;
  const int rank = context.rank();
  const int size = context.size();
  const bool is_root = rank == root;
  if (is_root && in.size() != static_cast<std::size_t>(size)) {
    return context.refuse("the root has " + std::to_string(in.size()) + " parts for " +
                          std::to_string(size) + " ranks");
  }
  if (is_root) context.publishSizes(SizeTable::kSent, in, false);
  const std::span<const ConstBytes> parts =
      is_root ? partsForOthers(context, in) : std::span<const ConstBytes>();
  BufferSlot slot;
  return exchange(
      context, parts, is_root ? slotFor(context, largest(parts), size - 1) : BufferSlot{},
      [&] {
        if (is_root) copyOwn(in[static_cast<std::size_t>(rank)], out);
        std::size_t most = 0;
        for (int to = 0; to < size; ++to) {
          if (to != root) most = std::max(most, context.sizeFrom(root, SizeTable::kSent, to));
        }
        slot = slotFor(context, most, size - 1);
        return piecesFrom(context, root, most, slot);
      },
      [&](std::size_t piece) {
        return is_root ? Error::ok()
                       : readPiece(context, root, slot, partIndex(rank, root), piece, out);
      });
}

}  // namespace weft::collectives::shm
