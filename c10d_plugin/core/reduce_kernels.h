// The arithmetic of reductions, on raw memory: many inputs, one output, each read once.
//
// The result depends only on the values and on the order of the inputs, not on where an element
// is in memory or how a range is cut up: ranks that reduce the same inputs in the same
// order get the same bits.
//
//  - float16 and bfloat16 are widened to float32, reduced there over all inputs, and rounded once
//    (to nearest, ties to even).
//  - Integers wrap around. kAverage divides toward zero, and wraps around only with 64 bits:
//    narrower integers are summed in 64 bits.
//  - kMin and kMax give NaN where any input is NaN, as torch.minimum and torch.maximum do; of 0 and
//    -0 they give either.
//  - bool: any nonzero byte counts as true; results are 0 or 1.
//
// Written as plain loops that the compiler vectorises, built for AVX-512, AVX2 and the baseline
// and chosen once by what the processor can do.
//
// Any thread. No allocation, no failure: the caller has asked canReduce() and checked sizes.
#pragma once

#include <cstddef>
#include <span>

#include "c10d_plugin/core/collectives.h"

namespace weft::collectives {

// out[i] = inputs[0][i] op inputs[1][i] op …, for `count` elements. At least one input; kAverage
// divides by the number of inputs. `out` may be one of the inputs (exactly, not shifted).
// Memory need not be aligned.
void reduceInto(Element element, Reduction reduction, std::byte* out,
                std::span<const std::byte* const> inputs, std::size_t count);

// What results of some of the ranks are made with, for finishReduction() to end.
constexpr Reduction partialReduction(Reduction reduction) noexcept {
  return reduction == Reduction::kAverage ? Reduction::kSum : reduction;
}

// Whether kAverage comes to the same from sums of some of the ranks. Sums of float16 and of narrow
// integers may not fit the type, although the average of all does.
constexpr bool sumsFit(Element element) noexcept {
  switch (element) {
    case Element::kUint8:
    case Element::kInt8:
    case Element::kInt16:
    case Element::kInt32:
    case Element::kUint16:
    case Element::kUint32:
    case Element::kFloat16:
      return false;
    default:
      return true;
  }
}

// data[i] /= by: the second half of kAverage where the sum was made pair by pair with kSum.
void divideBy(Element element, std::byte* data, std::size_t count, int by);

// Once all `ranks` are in `data`, combined by partialReduction(): kAverage is divided.
inline void finishReduction(const Call& call, Bytes data, int ranks) {
  if (call.reduction == Reduction::kAverage)
    divideBy(call.element, data.data(), data.size() / sizeOf(call.element), ranks);
}

}  // namespace weft::collectives
