// broadcast: the root lays out its data piece by piece; the others copy each piece out.
#include "c10d_plugin/shm/exchange.h"
#include "c10d_plugin/shm/operations.h"

namespace weft::collectives::shm {

Error broadcast(Context& context, const Call& call, Bytes data, int root) {
  if (Error error = context.begin(call, Operation::kBroadcast, data.size(), root)) return error;
  BufferSlot slot = slotFor(context, data.size(), 1);
  if (!slot.small) {
    // Several pieces, so that the root writes one while the others read the one before.
    constexpr std::size_t kLeast = std::size_t{128} << 10;
    slot.piece = std::min(slot.piece, std::max(roundUp(data.size() / 4, kCacheLine), kLeast));
  }
  const ConstBytes part = data;
  const bool is_root = context.rank() == root;
  return exchange(
      context, std::span(&part, is_root ? 1 : 0), is_root ? slot : BufferSlot{},
      [&] { return piecesFrom(context, root, data.size(), slot); },
      [&](std::size_t piece) {
        return is_root ? Error::ok() : readPiece(context, root, slot, 0, piece, data);
      });
}

}  // namespace weft::collectives::shm
