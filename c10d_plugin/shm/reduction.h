// What all_reduce and reduce share, whichever way the data take.
#pragma once

#include <cstddef>
#include <span>

#include "c10d_plugin/core/pieces.h"
#include "c10d_plugin/core/reduce_kernels.h"
#include "c10d_plugin/shm/context.h"

namespace weft::collectives::shm {

// A strip of data is small enough to stay in the first-level cache until it is copied.
inline constexpr std::size_t kStrip = std::size_t{16} << 10;

inline bool wantsResult(const Context& context, int root) {
  return root == kEverywhere || root == context.rank();
}

// The part of a block that `rank` reduces: whole cache lines.
inline Bytes partOf(Bytes block, int rank, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t part = roundUp((block.size() + ranks - 1) / ranks, kCacheLine);
  return pieceOf(block, static_cast<std::size_t>(rank), part);
}

// Reduces the scratch inputs, in order of rank, so that all ranks get the same bits.
inline void reduceInputs(Context& context, std::byte* out, std::size_t bytes) {
  const OpFingerprint& op = context.op();
  reduceInto(op.element, op.reduction, out, context.scratch().inputs, bytes / sizeOf(op.element));
}

// The first meeting of large data. A rank offers its data where they are (DirectData), else writes
// them by `lay_out`. If only some ranks offer them, all write them and meet again.
template <typename LayOut>
Error meetWithData(Context& context, ConstBytes data, LayOut&& lay_out) {
  const auto layOut = [&] {
    if (Error error = context.obtainBuffers()) return error;
    lay_out();
    return Error::ok();
  };
  if (!context.direct().offer(std::span(&data, 1))) {
    if (Error error = layOut()) return error;
  }
  if (Error error = context.meet()) return error;
  if (!context.direct().any() || context.direct().all()) return Error::ok();
  if (Error error = layOut()) return error;
  return context.meet();
}

// Reduces large data in blocks (reduce_blocks.cpp).
Error reduceBlocks(Context& context, Bytes data, int root);
// Reduces data that all ranks have offered in a first meeting (reduce_direct.cpp).
Error reduceDirect(Context& context, Bytes data, int root);

}  // namespace weft::collectives::shm
