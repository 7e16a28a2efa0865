#include "rpc_backend/shared_tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>

#include <atomic>

#include "rpc_backend/log.h"
#include "transport/exported_block.h"

namespace weft::rpc {

at::Tensor tensorOver(const transport::OwnedBuffer& buffer, c10::IntArrayRef sizes,
                      c10::OptionalIntArrayRef strides, c10::ScalarType dtype) {
  auto* const owner = new std::shared_ptr<void>(buffer.owner);
  return at::for_blob(buffer.data, sizes)
      .strides(strides)
      .context(owner, [](void* kept) { delete static_cast<std::shared_ptr<void>*>(kept); })
      .options(at::TensorOptions().dtype(dtype).device(c10::kCPU))
      .allocator(c10::GetAllocator(c10::kCPU))
      .resizeable_storage()
      .make_tensor();
}

at::Tensor emptyExported(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype).device(c10::kCPU);
  at::detail::check_size_nonnegative(sizes);
  const std::size_t bytes =
      at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(dtype));
  if (bytes < transport::ExportedBlock::kMinBytes || c10::isQIntType(dtype)) {
    return at::empty(sizes, options);
  }
  auto block = transport::ExportedBlock::create(bytes);
  if (!block.ok()) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true)) {
      logWarning("weft.empty gives ordinary memory, which is copied when it is sent: " +
                 block.error().text());
    }
    return at::empty(sizes, options);
  }
  std::byte* const data = block.value()->data();
  return tensorOver({data, bytes, std::move(block).value()}, sizes, std::nullopt, dtype);
}

}  // namespace weft::rpc
