// all_reduce and reduce.
//
// Small data: every rank copies all its data into its buffer, and every rank that wants the result
// reduces all of them in order of rank. One meeting.
//
// Large data of two ranks, for both: the same, piece by piece. It moves as many bytes between the
// cores as blocks do, in fewer steps.
//
// Other large data: in blocks, of which each rank reduces a part (reduce_blocks.cpp).
//
// Data that are in all ranks' heaps: each rank reduces its part of them where they are
// (reduce_direct.cpp).
#include <cstring>

#include "c10d_plugin/shm/exchange.h"
#include "c10d_plugin/shm/reduction.h"
#include "c10d_plugin/shm/shm_collectives.h"

namespace weft::collectives {
namespace shm {
namespace {

Error reduceSmall(Context& context, Bytes data, int root) {
  const Segment& segment = context.segment();
  const std::uint64_t step = context.step();
  if (!data.empty()) std::memcpy(segment.small(context.rank(), step), data.data(), data.size());
  if (Error error = context.meet()) return error;
  if (!wantsResult(context, root) || data.empty()) return Error::ok();
  auto& inputs = context.scratch().inputs;
  inputs.clear();
  for (int rank = 0; rank < context.size(); ++rank)
    inputs.push_back(rank == context.rank() ? data.data() : segment.small(rank, step));
  reduceInputs(context, data.data(), data.size());
  return Error::ok();
}

Error allReduceAsPair(Context& context, Bytes data) {
  const BufferSlot slot{false, context.segment().layout().buffer_bytes};
  const ConstBytes whole = data;
  const auto write = [&](std::size_t piece) {
    writePiece(context, std::span(&whole, 1), slot, piece);
  };
  if (Error error = meetWithData(context, data, [&] { write(0); })) return error;
  if (context.direct().all()) return reduceDirect(context, data, kEverywhere);
  const int own = context.rank();
  const std::size_t pieces = piecesOf(data.size(), slot.piece);
  for (std::size_t next = 1;; ++next) {
    if (next < pieces) write(next);
    const Bytes piece = pieceOf(data, next - 1, slot.piece);
    const std::byte* const other = writtenBy(context, 1 - own, slot, 0);
    context.scratch().inputs.assign(
        {own == 0 ? piece.data() : other, own == 0 ? other : piece.data()});
    reduceInputs(context, piece.data(), piece.size());
    if (next == pieces) return Error::ok();
    if (Error error = context.meet()) return error;
  }
}

Error reduceTo(Context& context, Bytes data, int root) {
  if (data.size() <= context.segment().layout().small_bytes)
    return reduceSmall(context, data, root);
  if (context.size() == 2 && root == kEverywhere) return allReduceAsPair(context, data);
  return reduceBlocks(context, data, root);
}

}  // namespace

}  // namespace shm

Error ShmCollectives::allReduce(const Call& call, Bytes data) {
  if (Error error = context_.begin(call, Operation::kAllReduce, data.size())) return error;
  return shm::reduceTo(context_, data, kEverywhere);
}

Error ShmCollectives::reduce(const Call& call, Bytes data, int root) {
  if (Error error = context_.begin(call, Operation::kReduce, data.size(), root)) return error;
  return shm::reduceTo(context_, data, root);
}

}  // namespace weft::collectives
