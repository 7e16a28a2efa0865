// Sparse tensors from parts: those that a peer made up must not reach beyond the shape.
#include "rpc_backend/codec/sparse_parts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

at::Tensor numbers(std::vector<std::int64_t> values) { return at::tensor(values, at::kLong); }

TEST(SparseParts, EachLayoutIsMadeAgain) {
  const at::Tensor eye = at::eye(4);
  const at::Tensor twice = at::sparse_coo_tensor(numbers({1, 1}).view({1, 2}),
                                                 at::ones({2, 5}).requires_grad_(), {3, 5});
  const std::vector<at::Tensor> all{eye.to_sparse(),
                                    twice,
                                    at::zeros({3, 3}).to_sparse(),
                                    eye.to_sparse_csr(),
                                    eye.to_sparse_csc(),
                                    eye.to_sparse_bsr({2, 2}),
                                    eye.to_sparse_bsc({2, 2})};
  for (const at::Tensor& sparse : all) {
    SCOPED_TRACE(sparse.toString());
    const auto parts = sparseParts(sparse);
    ASSERT_EQ(parts.size(), sparsePartCount(sparse.layout()));
    const bool coalesced = sparse.is_sparse() && sparse.is_coalesced();
    const at::Tensor made = joinSparse({sparse.layout(), sparse.sizes().vec(), coalesced}, parts);
    EXPECT_EQ(made.layout(), sparse.layout());
    EXPECT_FALSE(made.requires_grad());
    EXPECT_EQ(made.is_sparse() && made.is_coalesced(), coalesced);
    EXPECT_TRUE(made.to_dense().equal(sparse.detach().to_dense()));
  }
  EXPECT_EQ(sparsePartCount(c10::kStrided), 0U);
}

TEST(SparseParts, IndicesOfACooTensorMustBeWithinItsShape) {
  const auto join = [](const at::Tensor& indices, std::vector<std::int64_t> sizes,
                       bool coalesced = false, const at::Tensor& values = at::ones({2})) {
    return joinSparse({c10::kSparse, std::move(sizes), coalesced}, {indices, values});
  };
  const at::Tensor good = numbers({0, 2}).view({1, 2});
  EXPECT_EQ(join(good, {3}, true).to_dense().sum().item<double>(), 2);
  EXPECT_THROW(join(good, {2}), c10::Error);
  EXPECT_THROW(join(numbers({0, -1}).view({1, 2}), {3}), c10::Error);
  EXPECT_THROW(join(good, {3, 3}), c10::Error);
  EXPECT_THROW(join(good, {-3}), c10::Error);
  EXPECT_THROW(join(good, {std::int64_t{1} << 62, 8}), c10::Error);
  EXPECT_THROW(join(good.to(at::kInt), {3}), c10::Error);
  EXPECT_THROW(join(good.to(at::kDouble), {3}), c10::Error);
  EXPECT_THROW(join(good, {3}, false, at::ones({1})), c10::Error);
  EXPECT_THROW(join(numbers({1, 1}).view({1, 2}), {3}, /*coalesced=*/true), c10::Error);
  EXPECT_THROW(join(numbers({}), {3}, false, at::ones({0})), c10::Error);
}

TEST(SparseParts, IndicesOfACompressedTensorMustBeWithinItsShape) {
  const auto join = [](const at::Tensor& rows, const at::Tensor& columns,
                       std::vector<std::int64_t> sizes, c10::Layout layout = c10::kSparseCsr) {
    return joinSparse({layout, std::move(sizes)}, {rows, columns, at::ones({2})});
  };
  const at::Tensor rows = numbers({0, 1, 2});
  const at::Tensor columns = numbers({0, 1});
  EXPECT_EQ(join(rows, columns, {2, 2}).to_dense().sum().item<double>(), 2);
  EXPECT_THROW(join(rows, columns, {2, 1}), c10::Error);
  EXPECT_THROW(join(rows, columns, {1, 2}), c10::Error);
  EXPECT_THROW(join(numbers({0, 1, 200}), columns, {2, 2}), c10::Error);
  EXPECT_THROW(join(numbers({0, -1, 2}), columns, {2, 2}), c10::Error);
  EXPECT_THROW(join(rows, numbers({0, -1}), {2, 2}), c10::Error);
  EXPECT_THROW(join(rows, columns.to(at::kDouble), {2, 2}), c10::Error);
  EXPECT_THROW(join(rows, columns, {2, 2}, c10::kSparseBsr), c10::Error);
}

TEST(SparseParts, BlocksHaveElements) {
  for (const c10::Layout layout : {c10::kSparseBsr, c10::kSparseBsc}) {
    const auto join = [&](std::vector<std::int64_t> block) {
      block.insert(block.begin(), 2);
      return joinSparse({layout, {2, 2}}, {numbers({0, 1, 2}), numbers({0, 1}), at::ones(block)});
    };
    EXPECT_EQ(join({1, 1}).to_dense().sum().item<double>(), 2);
    EXPECT_THROW(join({0, 0}), c10::Error);
    EXPECT_THROW(join({0, 1}), c10::Error);
    EXPECT_THROW(join({1, 0}), c10::Error);
  }
}

}  // namespace
}  // namespace weft::rpc
