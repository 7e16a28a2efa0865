// What a tensor's sizes and strides say about its memory, and how much of it may be gaps, because a
// few bytes of a header must not ask for much memory. Without torch, so that it is fuzzed.
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
  // Whether a layout with gaps is kept: it is small, or at least half full.
  bool worthKeeping() const noexcept { return span <= 8192 || span / 2 <= elements; }
};
// Nothing if elements overlap, or if a number is negative or overflows. Total: any numbers give an
// answer, so that a hostile header cannot ask for memory that its message does not have.
std::optional<TensorLayout> layoutOf(std::span<const std::int64_t> sizes,
                                     std::span<const std::int64_t> strides, std::size_t item_size);

// Counts the gaps of one message's tensors, in their order. Sender and receiver count alike: if a
// tensor's gaps are too much, the sender sends it dense, and the receiver would refuse it.
class GapBudget {
 public:
  // Counts a tensor, dense or not. False: its gaps are too much, and are not counted. The gaps
  // counted are at most 1 MiB more than the elements so far.
  bool admits(const TensorLayout& layout) noexcept;
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::uint64_t kFree = std::uint64_t{1} << 20;

  std::uint64_t elements_ = 0;
  std::uint64_t bytes_ = 0;  // of the gaps
};

}  // namespace weft::rpc
