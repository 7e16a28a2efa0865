// A sparse tensor travels as the dense ones that it is made of, each sent like any other, and a
// description of how they belong together. So it needs no reader of its own for untrusted bytes:
// torch's own checks see that the indices are within the shape.
//
// Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Layout.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::rpc {

struct SparseForm {
  c10::Layout layout = c10::kSparse;
  std::vector<std::int64_t> sizes;  // of the sparse tensor
  bool coalesced = false;           // COO only
};

// How many tensors make one of this layout: COO, CSR, CSC, BSR or BSC. 0: it is not sparse.
std::size_t sparsePartCount(c10::Layout layout) noexcept;

// COO: indices and values. Compressed: compressed indices, plain indices and values. They share
// the memory of `sparse`, and have no graph.
std::vector<at::Tensor> sparseParts(const at::Tensor& sparse);

// The sparse tensor that has these parts, which must be sparsePartCount() many. Throws c10::Error
// where they do not fit each other, so that parts may come from a peer that is not trusted.
at::Tensor joinSparse(const SparseForm& form, const std::vector<at::Tensor>& parts);

}  // namespace weft::rpc
