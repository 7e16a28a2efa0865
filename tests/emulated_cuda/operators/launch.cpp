#include "tests/emulated_cuda/operators/launch.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>

namespace emulated {
namespace {

using Late = std::vector<std::pair<at::Tensor, at::Tensor>>;

void writeLate(void* data) {
  const std::unique_ptr<Late> late(static_cast<Late*>(data));
  const at::AutoDispatchBelowADInplaceOrView plain;
  for (const auto& [target, value] : *late)
    target.copy_(value);
}

// Calls see(first, bytes) for each run of bytes that a tensor has; for many short ones, for the
// whole that they lie in.
template <typename See>
void forEachRun(const at::Tensor& tensor, const See& see) {
  if (tensor.numel() == 0) return;
  const auto* first = static_cast<const char*>(tensor.const_data_ptr());
  const auto item = tensor.element_size();
  if (tensor.is_non_overlapping_and_dense()) {
    see(first, static_cast<std::size_t>(tensor.numel()) * item);
  } else if (tensor.size(0) <= 64 && tensor.stride(0) > 0) {
    for (std::int64_t row = 0; row < tensor.size(0); ++row)
      forEachRun(tensor.select(0, row), see);
  } else {
    std::size_t last = 0;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
      last += static_cast<std::size_t>((tensor.size(dim) - 1) * tensor.stride(dim));
    see(first, (last + 1) * item);
  }
}

}  // namespace

at::Tensor onHost(const at::Tensor& tensor) {
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU).requires_grad(false));
}

Launch::Launch(c10::DeviceIndex device) : stream_(c10::cuda::getCurrentCUDAStream(device)) {
  C10_CUDA_CHECK(emulatedCudaDrain(stream_));
}

void Launch::reads(const at::Tensor& tensor) { note(tensor, false); }

void Launch::writes(const at::Tensor& target, at::Tensor value) {
  note(target, true);
  late_.emplace_back(onHost(target), std::move(value));
}

void Launch::run() {
  auto late = std::make_unique<Late>(std::move(late_));
  C10_CUDA_CHECK(
      emulatedCudaLaunch(stream_, accesses_.data(), accesses_.size(), &writeLate, late.get()));
  late.release();
}

void Launch::note(const at::Tensor& tensor, bool write) {
  forEachRun(onHost(tensor), [&](const char* first, std::size_t bytes) {
    accesses_.push_back({first, bytes, write});
    C10_CUDA_CHECK(emulatedCudaCheck(&accesses_.back(), 1));
  });
}

}  // namespace emulated
