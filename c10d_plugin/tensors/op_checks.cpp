#include "c10d_plugin/tensors/op_checks.h"

#include <ATen/MemoryOverlap.h>
#include <c10/util/Exception.h>

#include <numeric>

#include "c10d_plugin/tensors/contiguous_tensor.h"

namespace weft::process_group {

const at::Tensor& only(const Tensors& tensors, const char* title) {
  TORCH_CHECK(tensors.size() == 1, title, ": takes one tensor, got ", tensors.size());
  return tensors.front();
}

const Tensors& onePerRank(const std::vector<Tensors>& lists, int size, const char* title) {
  TORCH_CHECK(lists.size() == 1, title, ": takes one list of tensors, got ", lists.size());
  checkCount(lists.front().size(), size, "listed", title);
  return lists.front();
}

Tensors onePerRankAtRoot(const std::vector<Tensors>& lists, int size, bool root,
                         const char* title) {
  if (root) return onePerRank(lists, size, title);
  TORCH_CHECK(lists.empty() || (lists.size() == 1 && lists.front().empty()), title,
              ": only the root rank may give a list of tensors");
  return {};
}

int checkRank(std::int64_t rank, int size, const char* which, const char* title) {
  TORCH_CHECK(rank >= 0 && rank < size, title, ": the ", which, " rank must be from 0 to ",
              size - 1, ", got ", rank);
  return static_cast<int>(rank);
}

void checkCount(std::size_t count, int size, const char* what, const char* title) {
  TORCH_CHECK(count == static_cast<std::size_t>(size), title, ": needs one ", what,
              " tensor for each of the ", size, " ranks, got ", count);
}

void checkAlike(const at::Tensor& first, const Tensors& others, const char* title) {
  checkDense(first, title);
  for (const at::Tensor& other : others) {
    checkDense(other, title);
    TORCH_CHECK(other.scalar_type() == first.scalar_type(), title,
                ": all tensors must have one type, got ", first.scalar_type(), " and ",
                other.scalar_type());
  }
}

void checkWritable(const at::Tensor& output, const char* title) {
  TORCH_CHECK(at::has_internal_overlap(output) != at::MemOverlap::Yes, title, ": a tensor of ",
              output.sizes(), " with strides ", output.strides(),
              " cannot be written to, because several elements refer to a single memory location; "
              "give a clone() of it");
}

void checkWritable(const Tensors& outputs, const char* title) {
  for (const at::Tensor& output : outputs)
    checkWritable(output, title);
}

void checkOwnShare(const at::Tensor& own, const at::Tensor& place, int rank, const char* title) {
  TORCH_CHECK(own.numel() == place.numel(), title, ": the tensor of this rank has ", own.numel(),
              " elements, its place in the list (", rank, ") has ", place.numel());
}

void checkTimes(const at::Tensor& whole, const at::Tensor& share, std::size_t ranks,
                const char* title) {
  TORCH_CHECK(whole.numel() == share.numel() * static_cast<std::int64_t>(ranks), title,
              ": the larger tensor must have ", ranks, " times the elements of the smaller, got ",
              whole.numel(), " and ", share.numel());
}

void checkBase(const at::Tensor& whole, const at::Tensor& share, int size, const char* title) {
  checkAlike(whole, {share}, title);
  checkTimes(whole, share, static_cast<std::size_t>(size), title);
}

namespace {

// The elements of the split of `rank`.
std::int64_t splitOf(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int rank,
                     int size) {
  if (splits.empty()) return tensor.numel() / size;
  const std::int64_t rows = tensor.size(0);
  return rows == 0 ? 0 : tensor.numel() / rows * splits[static_cast<std::size_t>(rank)];
}

}  // namespace

void checkOwnSplits(const at::Tensor& output, const std::vector<std::int64_t>& output_splits,
                    const at::Tensor& input, const std::vector<std::int64_t>& input_splits,
                    int rank, int size, const char* title) {
  const std::int64_t own = splitOf(input, input_splits, rank, size);
  const std::int64_t place = splitOf(output, output_splits, rank, size);
  TORCH_CHECK(own == place, title, ": the input's split for this rank has ", own,
              " elements, its place in the output (", rank, ") has ", place);
}

void checkSplits(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int size,
                 const char* title) {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK(rows % size == 0, title, ": without split sizes, dimension 0 (", rows,
                ") must divide by the ", size, " ranks");
    return;
  }
  TORCH_CHECK(splits.size() == static_cast<std::size_t>(size), title,
              ": needs one split size for each of the ", size, " ranks, got ", splits.size());
  TORCH_CHECK(tensor.dim() > 0, title, ": a tensor with split sizes needs a dimension");
  for (const std::int64_t split : splits)
    TORCH_CHECK(split >= 0, title, ": a split size is negative: ", split);
  const auto sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  TORCH_CHECK(sum == rows, title, ": the split sizes add up to ", sum, ", dimension 0 is ", rows);
}

}  // namespace weft::process_group
