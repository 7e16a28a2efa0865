// Which tensors are the same, or in the same memory, or have changed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/base/api.h"

namespace weft::pipe {

// The storage that a tensor is in; nullptr if it has none, as a sparse one.
const c10::StorageImpl* memoryOf(const at::Tensor& tensor);

// Whether two of the tensors are in one storage; of sparse ones, their values.
WEFT_API bool shareStorage(const std::vector<at::Tensor>& tensors);

// The first place of the tensor that is at place k.
std::size_t firstSame(const std::vector<at::Tensor>& tensors, std::size_t k);

// `tensor.clone()`, but one that is no inference tensor gives none: in inference mode its tangent
// of forward-mode AD would be lost, which a view keeps.
at::Tensor copyOf(const at::Tensor& tensor);
// The same for at::cat().
at::Tensor joined(const std::vector<at::Tensor>& tensors);

// False when no element of the one is an element of the other; true also where that cannot be told:
// of different strides or types that begin before the other's end.
WEFT_API bool mayOverlap(const at::Tensor& one, const at::Tensor& other);

// How often the tensor has been changed in place; 0 if nobody counts.
std::uint32_t versionOf(const at::Tensor& tensor);
std::vector<std::uint32_t> versionsOf(const std::vector<at::Tensor>& tensors);

}  // namespace weft::pipe
