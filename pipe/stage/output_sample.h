// A few elements of a stage's output. They show when the stage computes something else in its
// second run: its gradients would then be those of another function.
//
// Reads memory and calls no operator. Only dense tensors of torch's own on the CPU are looked at;
// to read others would take an operator, or a wait for a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "transport/base/api.h"

namespace weft::pipe {

class WEFT_API OutputSample {
 public:
  OutputSample() = default;
  explicit OutputSample(const std::vector<at::Tensor>& output);

  // Throws if `output`, of a later run of the stage, has other elements, up to what rounding does.
  // One that is longer or shorter than the first is compared as far as both go.
  void checkRepeated(const std::vector<at::Tensor>& output, std::size_t stage) const;

 private:
  struct Values {
    double tolerance = 0;          // relative to the largest
    std::vector<double> elements;  // none: not looked at
  };
  static Values read(const at::Tensor& tensor);

  std::vector<Values> values_;
};

}  // namespace weft::pipe
