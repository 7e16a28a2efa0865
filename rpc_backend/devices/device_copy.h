// Between host and device: what HostStaging, DeviceArrivals and IncomingMessage share.
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

// Bytes [begin, begin + size) of a dense tensor of the host, into its like on a CUDA device. The
// copy is queued when this returns, and those bytes of `host` are not needed any more: they are in
// pinned memory, which torch's pool has again as soon as they are copied.
void copyPiece(const at::Tensor& host, const at::Tensor& made, std::size_t begin, std::size_t size);

// A dense tensor of the host on another device: in such pieces on a CUDA device.
at::Tensor toDevice(const at::Tensor& host, c10::Device device);

}  // namespace weft::rpc
