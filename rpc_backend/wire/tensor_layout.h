// What a tensor's sizes and strides say about its memory, and how much of it may be gaps: few bytes
// of a header must not ask for much memory. Without torch, so that it is fuzzed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace weft::rpc {

inline constexpr std::size_t kMaxDims = 64;

// In bytes.
struct TensorLayout {
  std::uint64_t elements = 0;
  std::uint64_t span =
      0;  // from the first element to the last; as `elements` when there are no gaps

  bool isDense() const noexcept { return span == elements; }
  // Whether a layout with gaps is kept: it is small, or at least half full.
  bool worthKeeping() const noexcept { return span <= 8192 || span / 2 <= elements; }
};
// Nothing for elements that overlap, and for what is negative or overflows. Total: any numbers give
// an answer, so that a hostile header cannot ask for memory that its message does not have.
std::optional<TensorLayout> layoutOf(std::span<const std::int64_t> sizes,
                                     std::span<const std::int64_t> strides, std::size_t item_size);

// The gaps of one message's tensors, in their order. Sender and receiver count alike: what the
// sender finds too much it sends dense, and the receiver refuses.
class GapBudget {
 public:
  // Counts a tensor, dense or not. False: its gaps are not kept. Those that are come to at most
  // 1 MiB and as much as the elements so far.
  bool admits(const TensorLayout& layout) noexcept;
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::uint64_t kFree = std::uint64_t{1} << 20;

  std::uint64_t elements_ = 0;
  std::uint64_t bytes_ = 0;  // of the gaps
};

}  // namespace weft::rpc
