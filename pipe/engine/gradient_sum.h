// A gradient that comes in parts, of any layouts. Every sum of gradients in the engine is one.
#pragma once

#include <ATen/core/Tensor.h>

namespace weft::pipe {

// One thread at a time.
class GradientSum {
 public:
  // An undefined part counts as zero. Parts are added in place once nobody else has the sum.
  void add(at::Tensor part);
  // Undefined if every part was.
  at::Tensor take() { return std::move(sum_); }

 private:
  at::Tensor sum_;
  bool owned_ = false;  // nobody else refers to sum_
};

}  // namespace weft::pipe
