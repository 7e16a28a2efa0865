// Between host and device: what HostStaging and IncomingMessage share.
//
// Threads: any. Copies are queued on the devices' current streams. Failure: c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace weft::rpc {

// Large tensors go in pieces of so many bytes.
inline constexpr std::size_t kChunk = std::size_t{4} << 20;

at::Tensor pinnedBytes(std::size_t size);
// The bytes of a dense tensor, which must live as long as they are used.
at::Tensor asBytes(const at::Tensor& dense);

// A dense tensor of the host on another device. On a CUDA device the copies are queued when this
// returns, and `host` is not needed any more: its bytes are in pinned memory, which torch's pool
// has again, piece by piece, as soon as they are copied.
at::Tensor toDevice(const at::Tensor& host, c10::Device device);

}  // namespace weft::rpc
