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

// Null when the system gives no more blocks.
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
  struct Place {
    std::size_t bytes = 0;
    std::size_t room = 0;  // in the block; 0: an ordinary tensor
  };
  std::vector<Place> places;
  std::size_t total = 0;
  for (const auto& [sizes, dtype] : shapes) {
    at::detail::check_size_nonnegative(sizes);
    Place place{at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(dtype))};
    // Whole pages, so that a write to a tensor does not make pages of another private.
    if (place.bytes >= transport::ExportedBlock::kMinBytes && !c10::isQIntType(dtype)) {
      place.room = transport::roundUp(place.bytes, transport::pageBytes());
    }
    total += place.room;
    places.push_back(place);
  }
  const auto block = total == 0 ? nullptr : newBlock(total);
  std::vector<at::Tensor> tensors;
  std::size_t at = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto& [sizes, dtype] = shapes[i];
    const auto& [bytes, room] = places[i];
    tensors.push_back(block == nullptr || room == 0
                          ? at::empty(sizes, dtype)
                          : tensorOver({block->data() + at, bytes, block}, sizes, {}, dtype));
    at += room;
  }
  return tensors;
}

}  // namespace weft::rpc
