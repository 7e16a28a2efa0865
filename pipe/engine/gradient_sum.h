// A gradient that comes in parts, of any layouts.
#pragma once

#include <ATen/core/Tensor.h>

namespace weft::pipe {

// Their sum; what is undefined counts as zero. A sparse tensor can be added to a dense one, and not
// the other way round.
inline at::Tensor sumOf(const at::Tensor& one, const at::Tensor& other) {
  if (!one.defined()) return other;
  if (!other.defined()) return one;
  return one.is_sparse() && !other.is_sparse() ? other + one : one + other;
}

}  // namespace weft::pipe
