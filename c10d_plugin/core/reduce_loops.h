// The loops of reductions, over any element and operation (reduce_elements.h). Plain loops that the
// compiler vectorises.
#pragma once

#include <algorithm>

#include "c10d_plugin/core/reduce_elements.h"

// The output may be one of the inputs, element for element, but never shifted: no iteration of a
// loop reads what another one wrote. The compiler cannot know that.
#if defined(__clang__)
#define WEFT_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define WEFT_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace weft::collectives::kernels {

struct Job {
  std::byte* out;
  const std::byte* const* inputs;
  std::size_t input_count;
  std::size_t count;
  int divisor;  // 0: none
};

template <typename E>
WEFT_INLINE typename E::Wide read(const std::byte* from, std::size_t index) {
  return E::widen(loadAt<typename E::Stored>(from, index));
}

template <typename E>
WEFT_INLINE void write(std::byte* to, std::size_t index, typename E::Wide value) {
  storeAt<typename E::Stored>(to, index, E::narrow(value));
}

// inputs[0][i] op … op inputs[N - 1][i], in registers.
template <typename E, typename Op, int N>
WEFT_INLINE typename E::Wide combine(const std::byte* const* inputs, std::size_t index) {
  if constexpr (N == 1) {
    return read<E>(inputs[0], index);
  } else {
    return Op::apply(combine<E, Op, N - 1>(inputs, index), read<E>(inputs[N - 1], index));
  }
}

// Few inputs: one loop, nothing in between.
template <typename E, typename Op, int N>
WEFT_INLINE void reduceAtOnce(const Job& job) {
  const std::byte* inputs[N];
  for (int k = 0; k < N; ++k)
    inputs[k] = job.inputs[k];
  std::byte* const out = job.out;
  const std::size_t count = job.count;
  WEFT_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i)
    write<E>(out, i, combine<E, Op, N>(inputs, i));
}

template <typename Wide>
WEFT_INLINE void divideTile(Wide* values, std::size_t count, int by) {
  // Narrower integers are never divided: their averages have 64 bits here.
  if constexpr (std::is_arithmetic_v<Wide> &&
                (std::is_floating_point_v<Wide> || sizeof(Wide) == sizeof(std::int64_t))) {
    const Wide divisor = static_cast<Wide>(by);
    WEFT_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i)
      values[i] = static_cast<Wide>(values[i] / divisor);
  }
}

// Any number of inputs: a tile's results stay in the first-level cache until all inputs are in.
// Tiles are small because a store and a load whose addresses agree in the lowest 12 bits delay each
// other, and the inputs may be anywhere.
template <typename E, typename Op>
WEFT_INLINE void reduceTiles(const Job& job) {
  using Wide = typename E::Wide;
  constexpr std::size_t kTile = 1024 / sizeof(Wide);
  alignas(64) Wide tile[kTile];
  for (std::size_t begin = 0; begin < job.count; begin += kTile) {
    const std::size_t size = std::min(kTile, job.count - begin);
    const std::size_t skip = begin * sizeof(typename E::Stored);
    const std::byte* const first = job.inputs[0] + skip;
    WEFT_INDEPENDENT
    for (std::size_t i = 0; i < size; ++i)
      tile[i] = read<E>(first, i);
    for (std::size_t k = 1; k < job.input_count; ++k) {
      const std::byte* const next = job.inputs[k] + skip;
      WEFT_INDEPENDENT
      for (std::size_t i = 0; i < size; ++i)
        tile[i] = Op::apply(tile[i], read<E>(next, i));
    }
    if (job.divisor != 0) divideTile<Wide>(tile, size, job.divisor);
    std::byte* const out = job.out + skip;
    WEFT_INDEPENDENT
    for (std::size_t i = 0; i < size; ++i)
      write<E>(out, i, tile[i]);
  }
}

template <typename E, typename Op>
WEFT_INLINE void runLoops(const Job& job) {
  switch (job.divisor == 0 ? job.input_count : 0) {
    case 2:
      return reduceAtOnce<E, Op, 2>(job);
    case 3:
      return reduceAtOnce<E, Op, 3>(job);
    case 4:
      return reduceAtOnce<E, Op, 4>(job);
    default:
      return reduceTiles<E, Op>(job);
  }
}

}  // namespace weft::collectives::kernels
