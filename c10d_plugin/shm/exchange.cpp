#include "c10d_plugin/shm/exchange.h"

#include <cstring>

#include "transport/memory/fast_memcpy.h"

namespace weft::collectives::shm {

BufferSlot slotFor(const Context& context, std::size_t largest_part, int parts) {
  const Layout& layout = context.segment().layout();
  const std::size_t count = std::max<std::size_t>(1, static_cast<std::size_t>(parts));
  const std::size_t small = layout.small_bytes;
  if (largest_part <= small && roundUp(largest_part, kCacheLine) * count <= small) {
    return {true, roundUp(largest_part, kCacheLine)};
  }
  return {false, layout.buffer_bytes / count / kCacheLine * kCacheLine};
}

std::size_t piecesFrom(Context& context, int rank, std::size_t bytes, const BufferSlot& slot) {
  if (!context.direct().isFrom(rank)) return piecesOf(bytes, slot.piece);
  return bytes == 0 ? 0 : 1;  // offered data are one piece
}

void writePiece(const Context& context, std::span<const ConstBytes> parts, const BufferSlot& slot,
                std::size_t number) {
  const Segment& segment = context.segment();
  std::byte* to = slot.small ? segment.small(context.rank(), context.step())
                             : segment.buffer(context.rank(), context.step());
  for (const ConstBytes& part : parts) {
    const ConstBytes piece = pieceOf(part, number, slot.piece);
    if (!piece.empty()) transport::fastMemcpy(to, piece.data(), piece.size());
    to += slot.piece;
  }
}

const std::byte* writtenBy(const Context& context, int rank, const BufferSlot& slot, int index) {
  const Segment& segment = context.segment();
  const std::uint64_t step = context.step() - 1;
  const std::byte* const from = slot.small ? segment.small(rank, step) : segment.buffer(rank, step);
  return from + static_cast<std::size_t>(index) * slot.piece;
}

Error readPiece(Context& context, int rank, const BufferSlot& slot, int index, std::size_t number,
                Bytes out) {
  if (context.direct().isFrom(rank)) {
    if (number != 0 || out.empty()) return Error::ok();
    const Result<std::byte*> from = context.direct().find(rank, index, out.size(), context.op());
    if (!from.ok()) return from.error();
    std::memcpy(out.data(), from.value(), out.size());
    return Error::ok();
  }
  const Bytes piece = pieceOf(out, number, slot.piece);
  if (!piece.empty())
    std::memcpy(piece.data(), writtenBy(context, rank, slot, index), piece.size());
  return Error::ok();
}

std::span<const ConstBytes> partsForOthers(Context& context, std::span<const ConstBytes> parts) {
  std::vector<ConstBytes>& others = context.scratch().parts;
  others.clear();
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (rank != static_cast<std::size_t>(context.rank())) others.push_back(parts[rank]);
  }
  return others;
}

}  // namespace weft::collectives::shm
