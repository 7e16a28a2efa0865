// Checks of an operation's arguments. Each throws c10::Error that names the operation and what was
// given, before anything has changed. Those of libweft.so's interface ask for no device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "transport/base/api.h"

namespace weft::process_group {

using Tensors = std::vector<at::Tensor>;

// The one tensor of a list that must have exactly one.
WEFT_API const at::Tensor& only(const Tensors& tensors, const char* title);
// The inner list, one tensor for each rank.
WEFT_API const Tensors& onePerRank(const std::vector<Tensors>& lists, int size, const char* title);
// The same at the root; other ranks must pass none, and the result is empty.
Tensors onePerRankAtRoot(const std::vector<Tensors>& lists, int size, bool root, const char* title);

WEFT_API int checkRank(std::int64_t rank, int size, const char* which, const char* title);
inline int checkRoot(std::int64_t root, int size, const char* title) {
  return checkRank(root, size, "root", title);
}
WEFT_API void checkCount(std::size_t count, int size, const char* what, const char* title);
// Dense, on the CPU, of one type.
void checkAlike(const at::Tensor& first, const Tensors& others, const char* title);
// Each element of what is written has memory of its own, unlike in a tensor made by expand(): the
// write would fail only once the other ranks are done.
WEFT_API void checkWritable(const at::Tensor& output, const char* title);
WEFT_API void checkWritable(const Tensors& outputs, const char* title);
// This rank's own tensor in a list must have as many elements as the tensor that goes there.
void checkOwnShare(const at::Tensor& own, const at::Tensor& place, int rank, const char* title);
// `whole` has the elements of one `share` per rank.
WEFT_API void checkTimes(const at::Tensor& whole, const at::Tensor& share, std::size_t ranks,
                         const char* title);
// The same, and both are alike.
void checkBase(const at::Tensor& whole, const at::Tensor& share, int size, const char* title);
// all_to_all_single: what this rank sends to itself is as much as it expects from itself. The
// splits have been checked.
WEFT_API void checkOwnSplits(const at::Tensor& output,
                             const std::vector<std::int64_t>& output_splits,
                             const at::Tensor& input, const std::vector<std::int64_t>& input_splits,
                             int rank, int size, const char* title);
// all_to_all_single: `splits` are rows for each rank, or empty for equal parts.
WEFT_API void checkSplits(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                          int size, const char* title);

}  // namespace weft::process_group
