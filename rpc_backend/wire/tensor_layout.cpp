#include "rpc_backend/wire/tensor_layout.h"

#include <algorithm>

namespace weft::rpc {

Dimensions rowMajorStrides(const Dimensions& sizes, std::size_t ndim) {
  Dimensions strides{};
  std::uint64_t stride = 1;
  for (std::size_t d = ndim; d-- > 0;) {
    strides[d] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(std::max<std::int64_t>(sizes[d], 1));
  }
  return strides;
}

std::optional<TensorLayout> layoutOf(std::span<const std::int64_t> sizes,
                                     std::span<const std::int64_t> strides, std::size_t item_size) {
  const auto overflows = [](std::int64_t a, std::int64_t b, std::int64_t& product) {
    return __builtin_mul_overflow(a, b, &product);
  };
  std::array<std::size_t, kMaxDims> order{};
  std::size_t used = 0;
  bool empty = false;
  auto bytes = static_cast<std::int64_t>(item_size);
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < 0 || strides[d] < 0) return std::nullopt;
    if (sizes[d] == 0) empty = true;
    if (sizes[d] > 1) order[used++] = d;
    if (sizes[d] > 1 && overflows(bytes, sizes[d], bytes)) return std::nullopt;
  }
  if (item_size == 0) return std::nullopt;
  if (empty) return TensorLayout{};
  // From the inside out: each dimension steps over all that is inside it.
  std::sort(order.begin(), order.begin() + used,
            [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  std::int64_t span = 1;  // elements covered so far
  for (std::size_t i = 0; i < used; ++i) {
    std::int64_t reach = 0;
    if (strides[order[i]] < span || overflows(strides[order[i]], sizes[order[i]] - 1, reach) ||
        __builtin_add_overflow(span, reach, &span)) {
      return std::nullopt;
    }
  }
  if (overflows(span, static_cast<std::int64_t>(item_size), span)) return std::nullopt;
  return TensorLayout{static_cast<std::uint64_t>(bytes), static_cast<std::uint64_t>(span)};
}

}  // namespace weft::rpc
