#include "rpc_backend/devices/host_staging.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <string>

#include "rpc_backend/core/log.h"
#include "rpc_backend/devices/device_copy.h"

namespace weft::rpc {

using transport::OwnedBuffer;

namespace {

OwnedBuffer partOf(const at::Tensor& block, std::size_t begin, std::size_t size) {
  return {static_cast<std::byte*>(block.mutable_data_ptr()) + begin, size,
          std::make_shared<c10::Storage>(block.storage())};
}

}  // namespace

void HostStaging::add(const at::Tensor& dense) { tensors_.push_back(dense); }

void HostStaging::begin() {
  host_.resize(tensors_.size());
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors_) {
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end())
      devices.push_back(tensor.device());
  }
  for (const c10::Device device : devices)
    pack(device);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].nbytes() > kPacked) copyInChunks(i);
  }
}

// What comes of it is awaited before the message is sent, and so is all that its device has been
// given to do so far: other messages to the receiver wait for no device.
void HostStaging::pack(c10::Device device) {
  std::vector<at::Tensor> parts;
  std::vector<std::size_t> indexes;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::size_t size = tensors_[i].nbytes();
    if (tensors_[i].device() != device || size == 0 || size > kPacked) continue;
    parts.push_back(asBytes(tensors_[i]));
    indexes.push_back(i);
    bytes += size;
  }
  if (!parts.empty()) {
    const at::Tensor block = pinnedBytes(bytes);
    block.copy_(parts.size() == 1 ? parts.front() : at::cat(parts), /*non_blocking=*/true);
    std::size_t begin = 0;
    for (const std::size_t index : indexes) {
      host_[index] = partOf(block, begin, tensors_[index].nbytes());
      begin += tensors_[index].nbytes();
    }
  }
  record(first_, device, nullptr);
}

void HostStaging::copyInChunks(std::size_t index) {
  const at::Tensor& dense = tensors_[index];
  const std::size_t bytes = dense.nbytes();
  const at::Tensor from = asBytes(dense);
  const at::Tensor into = pinnedBytes(bytes);
  host_[index] = partOf(into, 0, bytes);
  for (std::size_t begin = 0; begin < bytes; begin += kChunk) {
    const auto at = static_cast<std::int64_t>(begin);
    const auto size = static_cast<std::int64_t>(std::min(kChunk, bytes - begin));
    into.narrow(0, at, size).copy_(from.narrow(0, at, size), /*non_blocking=*/true);
    record(steps_, dense.device(), host_[index].data + at + size);
  }
  bytes_in_steps_ += bytes;
}

void HostStaging::record(std::deque<Step>& steps, c10::Device device, const std::byte* end) {
  steps.push_back({c10::Event(device.type()), end, 0});
  const c10::impl::VirtualGuardImpl guard(device.type());
  steps.back().done.record(guard.getStream(device));
}

bool HostStaging::awaitFirst() {
  for (; !first_.empty(); first_.pop_front())
    first_.front().done.synchronize();
  if (bytes_in_steps_ <= kChunk) {
    for (; !steps_.empty(); steps_.pop_front())
      steps_.front().done.synchronize();
  }
  return steps_.empty();
}

void HostStaging::locate(std::span<const OwnedBuffer> buffers) {
  auto step = steps_.begin();
  std::uint64_t before = 0;
  for (const OwnedBuffer& buffer : buffers) {
    const std::byte* const end = buffer.data + buffer.size;
    for (; step != steps_.end() && step->end > buffer.data && step->end <= end; ++step)
      step->filled = before + static_cast<std::uint64_t>(step->end - buffer.data);
    before += buffer.size;
  }
  TORCH_INTERNAL_ASSERT(step == steps_.end(), "a staged tensor is in no buffer of its message");
}

void HostStaging::waitBeyond(std::uint64_t bytes) noexcept {
  try {
    while (!steps_.empty() && filled_ <= bytes) {
      steps_.front().done.synchronize();
      filled_ = steps_.front().filled;
      steps_.pop_front();
    }
    if (!steps_.empty()) return;
    whole_ = std::byte{1};
  } catch (const std::exception& error) {
    logWarning("a tensor could not be copied from its device, so the call that it is for fails: " +
               std::string(error.what()));
    steps_.clear();
  }
  tensors_.clear();
  filled_ = kAll;
}

}  // namespace weft::rpc
