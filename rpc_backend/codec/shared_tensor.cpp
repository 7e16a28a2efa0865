#include "rpc_backend/codec/shared_tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>

#include <atomic>

#include "rpc_backend/core/log.h"
#include "transport/memory/exported_block.h"
#include "transport/memory/pages.h"

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

namespace {

std::size_t bytesOf(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  at::detail::check_size_nonnegative(sizes);
  return at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(dtype));
}

// Null: no more of them are to be had.
std::shared_ptr<transport::ExportedBlock> newBlock(std::size_t bytes) {
  auto block = transport::ExportedBlock::create(bytes);
  if (block.ok()) return std::move(block).value();
  static std::atomic<bool> told{false};
  if (!told.exchange(true)) {
    logWarning(
        "weft.empty and weft.snapshot give ordinary memory, which is copied when it is sent: " +
        block.error().text());
  }
  return nullptr;
}

}  // namespace

std::vector<at::Tensor> emptyExported(const std::vector<TensorShape>& shapes) {
  // What each takes of the block: whole pages, so that a write to one makes none of another
  // private. 0: it is an ordinary tensor.
  const auto room = [](const TensorShape& shape) -> std::size_t {
    const std::size_t bytes = bytesOf(shape.sizes, shape.dtype);
    if (bytes < transport::ExportedBlock::kMinBytes || c10::isQIntType(shape.dtype)) return 0;
    return transport::roundUp(bytes, transport::pageBytes());
  };
  std::size_t bytes = 0;
  for (const TensorShape& shape : shapes)
    bytes += room(shape);
  const auto block = bytes == 0 ? nullptr : newBlock(bytes);
  std::vector<at::Tensor> tensors;
  tensors.reserve(shapes.size());
  std::size_t at = 0;
  for (const TensorShape& shape : shapes) {
    if (block == nullptr || room(shape) == 0) {
      tensors.push_back(
          at::empty(shape.sizes, at::TensorOptions().dtype(shape.dtype).device(c10::kCPU)));
      continue;
    }
    tensors.push_back(tensorOver({block->data() + at, bytesOf(shape.sizes, shape.dtype), block},
                                 shape.sizes, std::nullopt, shape.dtype));
    at += room(shape);
  }
  return tensors;
}

}  // namespace weft::rpc
