// Reads a tensor that is not only elements in memory (sparse, quantised, …), as torch's pickler
// writes it (torch::distributed::rpc::wireSerialize), from a peer that is not trusted.
//
// torch's own reader believes what it reads: the lengths of sections and storages, and the places
// of tensors in them. Here a tensor lies in the bytes that came, and the indices of a sparse one in
// its shape. Quantised tensors of less than a byte for each element are not read.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace weft::rpc {

// Throws c10::Error for what torch's pickler does not write. Any thread.
at::Tensor readPickledTensor(std::span<const char> bytes);

}  // namespace weft::rpc
