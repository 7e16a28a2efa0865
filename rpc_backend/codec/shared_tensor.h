// Tensors over memory that Weft obtained: received, or to be sent without a copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "transport/base/api.h"
#include "transport/base/buffer.h"

namespace weft::rpc {

// A tensor whose memory is `buffer`. As any other it can be resized: beyond its size it moves. No
// strides: it is contiguous.
at::Tensor tensorOver(const transport::OwnedBuffer& buffer, c10::IntArrayRef sizes,
                      c10::OptionalIntArrayRef strides, c10::ScalarType dtype);

struct TensorShape {
  std::vector<std::int64_t> sizes;
  c10::ScalarType dtype = c10::ScalarType::Float;
};

// Contiguous CPU tensors, unfilled, in one ExportedBlock together; each has a storage of its own.
// Ordinary ones when they would be smaller than such a block's least size, or when no more of them
// are to be had (logged once). Throws c10::Error for sizes and types of which there are no tensors.
// Any thread.
WEFT_API std::vector<at::Tensor> emptyExported(const std::vector<TensorShape>& shapes);

}  // namespace weft::rpc
