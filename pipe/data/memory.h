// Whether tensors are in the same memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace weft::pipe {

// The storage that a tensor is in; nullptr if it has none, as a sparse one.
const void* memoryOf(const at::Tensor& tensor);

// False when no element of the one is an element of the other; true also where that cannot be told.
bool mayOverlap(const at::Tensor& one, const at::Tensor& other);

}  // namespace weft::pipe
