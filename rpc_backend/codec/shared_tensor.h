// Tensors over memory that Weft obtained: received, or to be sent without a copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "transport/base/api.h"
#include "transport/base/buffer.h"

namespace weft::rpc {

// A tensor whose memory is `buffer`; without strides it is contiguous. It can be resized like any
// other: beyond the buffer's size it moves.
at::Tensor tensorOver(const transport::OwnedBuffer& buffer, c10::IntArrayRef sizes,
                      c10::OptionalIntArrayRef strides, c10::ScalarType dtype);

struct TensorShape {
  std::vector<std::int64_t> sizes;
  c10::ScalarType dtype = c10::ScalarType::Float;
};

// Uninitialised contiguous CPU tensors in one ExportedBlock; each has a storage of its own. Tensors
// below the least size of a block are ordinary ones, and all are when the system gives no more
// blocks (logged once). Throws c10::Error for sizes and types that no tensor has. Any thread.
WEFT_API std::vector<at::Tensor> emptyExported(const std::vector<TensorShape>& shapes);

}  // namespace weft::rpc
