#include "rpc_backend/codec/sparse_parts.h"

#include <ATen/ATen.h>

namespace weft::rpc {

namespace {

// torch's check accepts blocks without elements, by whose sizes its operators divide. `first`: the
// dimension of `values` that is the height of a block; the next is the width.
void checkBlocks(c10::Layout layout, const at::Tensor& values, std::int64_t first) {
  if (layout != c10::kSparseBsr && layout != c10::kSparseBsc) return;
  TORCH_CHECK(values.size(first) > 0 && values.size(first + 1) > 0,
              "the blocks of a sparse tensor have no elements");
}

}  // namespace

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
  checkBlocks(form.layout, values, /*first=*/parts[0].dim());
  return at::_sparse_compressed_tensor_unsafe(parts[0], parts[1], values, form.sizes, options);
}

}  // namespace weft::rpc
