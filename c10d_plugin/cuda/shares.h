// Shares of flat tensors: the parts of the ranks in SharedDeviceBackend's operations.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "c10d_plugin/cuda/rounds.h"

namespace weft::process_group {

// One part for each rank.
inline std::vector<at::Tensor> equalParts(const at::Tensor& flat, std::size_t ranks) {
  std::vector<at::Tensor> parts = flat.chunk(static_cast<std::int64_t>(ranks));
  const at::Tensor last = parts.back();
  parts.resize(ranks, last);  // chunk() gives one part of an empty tensor
  return parts;
}

inline std::vector<std::int64_t> sizesOf(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> sizes;
  for (const at::Tensor& tensor : tensors)
    sizes.push_back(tensor.defined() ? tensor.numel() : kAnySize);
  return sizes;
}

}  // namespace weft::process_group
