// How the operations that only move data move it: piece by piece through the ranks' buffers.
//
// Every rank has three buffers, which it uses in turn. In step n a rank writes a piece into its
// buffer n, and reads what the others wrote in the step before. So writing overlaps with reading,
// and each piece needs only one meeting. Data that are offered directly (direct_data.h) are not
// written; they are one piece.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "c10d_plugin/core/pieces.h"
#include "c10d_plugin/shm/context.h"

namespace weft::collectives::shm {

// Where a rank lays out parts for the others: its small buffer if all of them fit there, else piece
// by piece in its large buffers.
struct BufferSlot {
  bool small = true;
  std::size_t piece = 0;  // bytes of room for each part
};

// The slot for so many parts, of which the largest has so many bytes.
BufferSlot slotFor(const Context& context, std::size_t largest_part, int parts);
// The number of pieces of what `rank` has for others.
std::size_t piecesFrom(Context& context, int rank, std::size_t bytes, const BufferSlot& slot);

// Writes piece `number` of each part into this rank's buffer of the running step.
void writePiece(const Context& context, std::span<const ConstBytes> parts, const BufferSlot& slot,
                std::size_t number);
// Part `index` of what `rank` wrote in the step before.
const std::byte* writtenBy(const Context& context, int rank, const BufferSlot& slot, int index);
// Copies piece `number` of part `index` of what `rank` has for others to its place in `out`.
Error readPiece(Context& context, int rank, const BufferSlot& slot, int index, std::size_t number,
                Bytes out);

// A rank writes a part for each of the others, in order of rank. These are the parts, and the index
// at which rank `reader` finds its own.
std::span<const ConstBytes> partsForOthers(Context& context, std::span<const ConstBytes> parts);
inline int partIndex(int reader, int writer) { return reader < writer ? reader : reader - 1; }

template <typename Part>
std::size_t largest(std::span<const Part> parts) {
  std::size_t most = 0;
  for (const Part& part : parts)
    most = std::max(most, part.size());
  return most;
}

// Writes `parts` piece by piece, one in each step, while consume(n) takes piece n of what the
// others wrote in the step before. count() is called after the first meeting, for the number of
// pieces.
template <typename Count, typename Consume>
Error exchange(Context& context, std::span<const ConstBytes> parts, const BufferSlot& slot,
               Count&& count, Consume&& consume) {
  if (slot.small || !context.direct().offer(parts)) {
    if (!slot.small) {
      if (Error error = context.obtainBuffers()) return error;
    }
    writePiece(context, parts, slot, 0);
  }
  if (Error error = context.meet()) return error;
  const std::size_t pieces = count();
  for (std::size_t next = 1; next <= pieces; ++next) {
    if (next < pieces && !context.direct().offering()) writePiece(context, parts, slot, next);
    if (Error error = consume(next - 1)) return error;
    if (next == pieces) break;
    if (Error error = context.meet()) return error;
  }
  // The last meeting keeps owners from touching offered data before all have read them.
  return context.direct().any() ? context.meet() : Error::ok();
}

}  // namespace weft::collectives::shm
