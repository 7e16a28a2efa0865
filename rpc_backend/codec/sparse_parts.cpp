#include "rpc_backend/codec/sparse_parts.h"

#include <ATen/ATen.h>

namespace weft::rpc {

std::size_t sparsePartCount(c10::Layout layout) noexcept {
  switch (layout) {
    case c10::kSparse:
      return 2;
    case c10::kSparseCsr:
    case c10::kSparseCsc:
    case c10::kSparseBsr:
    case c10::kSparseBsc:
      return 3;
    default:
      return 0;
  }
}

std::vector<at::Tensor> sparseParts(const at::Tensor& sparse) {
  const at::Tensor alone = sparse.detach();
  if (alone.layout() == c10::kSparse) return {alone._indices(), alone._values()};
  const bool by_rows = alone.layout() == c10::kSparseCsr || alone.layout() == c10::kSparseBsr;
  if (by_rows) return {alone.crow_indices(), alone.col_indices(), alone.values()};
  return {alone.ccol_indices(), alone.row_indices(), alone.values()};
}

at::Tensor joinSparse(const SparseForm& form, const std::vector<at::Tensor>& parts) {
  const at::Tensor values = parts.back().detach();
  const auto options = values.options().layout(form.layout);
  if (form.layout == c10::kSparse) {
    at::_validate_sparse_coo_tensor_args(parts[0], values, form.sizes, form.coalesced);
    return at::_sparse_coo_tensor_unsafe(parts[0], values, form.sizes, options, form.coalesced);
  }
  at::_validate_sparse_compressed_tensor_args(parts[0], parts[1], values, form.sizes, form.layout);
  return at::_sparse_compressed_tensor_unsafe(parts[0], parts[1], values, form.sizes, options);
}

}  // namespace weft::rpc
