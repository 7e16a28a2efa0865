#include "rpc_backend/devices/device_copy.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

namespace weft::rpc {

at::Tensor pinnedBytes(std::size_t size) {
  const auto options = at::TensorOptions().dtype(at::kByte).pinned_memory(true);
  return at::empty({static_cast<std::int64_t>(size)}, options);
}

at::Tensor asBytes(const at::Tensor& dense) {
  return at::for_blob(const_cast<void*>(dense.const_data_ptr()),
                      {static_cast<std::int64_t>(dense.nbytes())})
      .options(at::TensorOptions().dtype(at::kByte).device(dense.device()))
      .target_device(dense.device())
      .make_tensor();
}

void copyPiece(const at::Tensor& host, const at::Tensor& made, std::size_t begin,
               std::size_t size) {
  const at::Tensor piece = pinnedBytes(size);
  std::memcpy(piece.mutable_data_ptr(),
              static_cast<const std::byte*>(host.const_data_ptr()) + begin, size);
  asBytes(made)
      .narrow(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(size))
      .copy_(piece, /*non_blocking=*/true);
}

at::Tensor toDevice(const at::Tensor& host, c10::Device device) {
  const bool in_pieces = device.is_cuda() && host.layout() == c10::kStrided && !host.is_quantized();
  if (!in_pieces) return host.to(device, /*non_blocking=*/false);
  at::Tensor made = at::empty_strided(host.sizes(), host.strides(), host.options().device(device));
  for (std::size_t begin = 0; begin < host.nbytes(); begin += kChunk)
    copyPiece(host, made, begin, std::min(kChunk, host.nbytes() - begin));
  return made;
}

}  // namespace weft::rpc
