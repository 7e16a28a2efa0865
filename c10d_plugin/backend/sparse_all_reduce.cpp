#include "c10d_plugin/backend/sparse_all_reduce.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <span>
#include <vector>

#include "c10d_plugin/engine/op_context.h"
#include "c10d_plugin/tensors/contiguous_tensor.h"
#include "c10d_plugin/tensors/reduce_op.h"

namespace weft::process_group {

using collectives::Bytes;
using collectives::Element;

void checkSparse(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* title) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.layout() == c10::kSparse, title,
              ": a sparse all_reduce takes a sparse COO tensor on the CPU, got ", tensor.layout(),
              " on ", tensor.device());
  TORCH_CHECK(op.op_ == c10d::ReduceOp::SUM, title,
              ": sparse tensors can only be added up (ReduceOp.SUM)");
  (void)reductionOf(op, tensor.scalar_type(), title);
  TORCH_CHECK(!c10::isBarebonesUnsignedType(tensor.scalar_type()), title,
              ": torch cannot coalesce sparse tensors of type ", tensor.scalar_type(),
              "; convert them first");
}

namespace {

using Numbers = std::vector<std::int64_t>;

// Of one of the gathers that a sparse all_reduce is made of, which meets no other all_gather.
collectives::Call partOfSum(OpContext& context, Element element) {
  collectives::Call call = context.nextCall(element);
  call.sizes_digest = ~std::uint32_t{0};
  return call;
}

// Each rank's numbers, of which all have equally many.
std::vector<Numbers> gatherNumbers(OpContext& context, const Numbers& own) {
  std::vector<Numbers> all(static_cast<std::size_t>(context.collectives().size()),
                           Numbers(own.size()));
  std::vector<Bytes> out;
  for (Numbers& numbers : all)
    out.push_back(std::as_writable_bytes(std::span(numbers)));
  context.check(context.collectives().allGather(partOfSum(context, Element::kInt64),
                                                std::as_bytes(std::span(own)), out));
  return all;
}

// Throws on all ranks, which have all of the numbers.
void checkEqual(const std::vector<Numbers>& all, std::size_t first, const char* what,
                const char* title) {
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const c10::IntArrayRef here(all[rank]);
    const c10::IntArrayRef there(all[0]);
    TORCH_CHECK(here.slice(first) == there.slice(first), title,
                ": the sparse tensors of the ranks differ in ", what, ": ", there.slice(first),
                " on rank 0, ", here.slice(first), " on rank ", rank);
  }
}

// How many entries each rank has.
std::vector<std::int64_t> counts(OpContext& context, const at::Tensor& own, const char* title) {
  const std::vector<Numbers> all =
      gatherNumbers(context, {own._nnz(), own.sparse_dim(), own.dense_dim()});
  checkEqual(all, 1, "their numbers of sparse and of dense dimensions", title);
  checkEqual(gatherNumbers(context, own.sizes().vec()), 0, "shape", title);
  std::vector<std::int64_t> counts;
  for (const Numbers& numbers : all)
    counts.push_back(numbers[0]);
  return counts;
}

// All ranks' `part`, which differ in the length of dimension 0, one after the other.
at::Tensor gatherRows(OpContext& context, const at::Tensor& part,
                      const std::vector<std::int64_t>& rows) {
  std::vector<std::int64_t> shape = part.sizes().vec();
  shape[0] = 0;
  for (const std::int64_t count : rows)
    shape[0] += count;
  at::Tensor all = at::empty(shape, part.options());
  std::vector<Bytes> out;
  std::int64_t at = 0;
  for (const std::int64_t count : rows) {
    out.push_back(
        ContiguousTensor(all.narrow(0, at, count), ContiguousTensor::Use::kWrite).bytes());
    at += count;
  }
  context.check(context.collectives().allGather(
      partOfSum(context, elementOf(part.scalar_type())),
      ContiguousTensor(part, ContiguousTensor::Use::kRead).bytes(), out));
  return all;
}

}  // namespace

void sparseAllReduce(OpContext& context, const at::Tensor& tensor, const char* title) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor own = tensor.coalesce();
  const std::vector<std::int64_t> rows = counts(context, own, title);
  context.beginSeries();
  // Indices are [dimensions, entries]: transposed, entries of all ranks are one after the other.
  const at::Tensor indices = gatherRows(context, own._indices().t().contiguous(), rows);
  const at::Tensor values = gatherRows(context, own._values().contiguous(), rows);
  context.endSeries();
  const at::Tensor sum =
      at::_sparse_coo_tensor_unsafe(indices.t(), values, tensor.sizes(), tensor.options())
          .coalesce();
  tensor.copy_(sum);
}

}  // namespace weft::process_group
