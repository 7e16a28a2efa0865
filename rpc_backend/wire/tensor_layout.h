// What a tensor's sizes and strides say about its memory. Without torch, so that it is fuzzed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace weft::rpc {

inline constexpr std::size_t kMaxDims = 64;

// A tensor's sizes or strides.
using Dimensions = std::array<std::int64_t, kMaxDims>;

// Row-major strides as torch gives them: a dimension of size 0 counts as 1. An overflow wraps:
// layoutOf() refuses such sizes.
Dimensions rowMajorStrides(const Dimensions& sizes, std::size_t ndim);

// In bytes.
struct TensorLayout {
  std::uint64_t elements = 0;
  // From the first element to the end of the last; equals `elements` if there are no gaps.
  std::uint64_t span = 0;

  bool isDense() const noexcept { return span == elements; }
};
// Nothing if elements overlap, or if a number is negative or overflows. Total: any numbers give an
// answer, so that a hostile header cannot ask for memory that its message does not have.
std::optional<TensorLayout> layoutOf(std::span<const std::int64_t> sizes,
                                     std::span<const std::int64_t> strides, std::size_t item_size);

}  // namespace weft::rpc
