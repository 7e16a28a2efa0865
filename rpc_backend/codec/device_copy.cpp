#include "rpc_backend/codec/device_copy.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "rpc_backend/core/device_maps.h"

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

at::Tensor toDevice(const at::Tensor& host, c10::Device device) {
  if (!device.is_cuda()) {
    noteHostStaging();
    return host.to(device, /*non_blocking=*/false);
  }
  at::Tensor made = at::empty_strided(host.sizes(), host.strides(), host.options().device(device));
  if (host.nbytes() == 0) return made;
  const at::Tensor into = asBytes(made);
  const auto* const from = static_cast<const std::byte*>(host.const_data_ptr());
  for (std::size_t begin = 0; begin < host.nbytes(); begin += kChunk) {
    const std::size_t size = std::min(kChunk, host.nbytes() - begin);
    const at::Tensor piece = pinnedBytes(size);
    std::memcpy(piece.mutable_data_ptr(), from + begin, size);
    into.narrow(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(size))
        .copy_(piece, /*non_blocking=*/true);
  }
  return made;
}

}  // namespace weft::rpc
