#include "pipe/data/device_copier.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace weft::pipe {

namespace {

c10::impl::VirtualGuardImpl of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

// Keeps the tensor's memory from reuse until the stream has done what it was given so far.
void keepFor(const at::Tensor& tensor, const c10::Stream& stream) {
  of(tensor.device()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

c10::Event recordedOn(const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

}  // namespace

at::Tensor moved(const at::Tensor& tensor, c10::Device device) {
  return !tensor.defined() || tensor.device() == device
             ? tensor
             : tensor.to(device, tensor.scalar_type(),
                         isAccelerator(device) && isAccelerator(tensor.device()));
}

void keepForCurrentStream(const at::Tensor& tensor) {
  if (!tensor.defined() || !isAccelerator(tensor.device()) || !tensor.has_storage()) return;
  keepFor(tensor, of(tensor.device()).getStream(tensor.device()));
}

DeviceCopier::DeviceCopier(const std::vector<c10::Device>& devices) {
  for (const c10::Device device : devices) {
    if (!isAccelerator(device) || sidesOf(device) != nullptr) continue;
    try {
      const c10::Stream departures = of(device).getStreamFromGlobalPool(device);
      const c10::Stream arrivals = of(device).getStreamFromGlobalPool(device);
      (void)recordedOn(departures);
      sides_.push_back({departures, arrivals});
    } catch (const c10::Error&) {
      // An accelerator without streams and events gets plain copies.
    }
  }
}

const DeviceCopier::Sides* DeviceCopier::sidesOf(c10::Device device) const {
  const auto found = std::find_if(sides_.begin(), sides_.end(), [&](const Sides& sides) {
    return sides.arrivals.device() == device;
  });
  return found == sides_.end() ? nullptr : &*found;
}

bool DeviceCopier::takes(const at::Tensor& tensor, c10::Device to) const {
  const auto good = [&](c10::Device device) {
    return device.is_cpu() || sidesOf(device) != nullptr;
  };
  return good(tensor.device()) && good(to) && tensor.layout() == at::kStrided &&
         tensor.has_storage() && !at::isTensorSubclassLike(tensor);
}

PendingCopyPtr DeviceCopier::send(const std::vector<at::Tensor*>& tensors, c10::Device to) const {
  PendingCopyPtr pending;
  std::vector<c10::Device> left;  // their departures wait for what has been made so far
  const at::NoGradGuard no_grad;
  for (at::Tensor* const tensor : tensors) {
    if (!tensor->defined() || tensor->device() == to) continue;
    if (!takes(*tensor, to)) {
      *tensor = moved(*tensor, to);
      continue;
    }
    const c10::Device from = tensor->device();
    const Sides* const leaves = sidesOf(from);
    const Sides* const arrives = sidesOf(to);
    if (leaves != nullptr && std::find(left.begin(), left.end(), from) == left.end()) {
      recordedOn(of(from).getStream(from)).block(leaves->departures);
      left.push_back(from);
    }
    c10::OptionalStreamGuard there;
    c10::OptionalStreamGuard here;
    if (leaves != nullptr) there.reset_stream(leaves->departures);
    if (arrives != nullptr) here.reset_stream(arrives->arrivals);
    // From the host the copy has ended when this returns: pinned memory may be written to then.
    const at::Tensor copy = tensor->to(to, tensor->scalar_type(), /*non_blocking=*/!from.is_cpu());
    if (leaves != nullptr) keepFor(*tensor, leaves->departures);
    *tensor = copy;
    if (!pending) pending = std::make_unique<PendingCopy>(to);
    pending->tensors.push_back(copy);
  }
  if (!pending) return pending;
  if (const Sides* const arrives = sidesOf(to)) {
    pending->here.push_back(recordedOn(arrives->arrivals));
  } else {
    for (const c10::Device from : left)
      pending->here.push_back(recordedOn(sidesOf(from)->departures));
  }
  return pending;
}

void DeviceCopier::wait(PendingCopyPtr pending) {
  if (!pending) return;
  if (!isAccelerator(pending->to)) {
    for (const c10::Event& event : pending->here)
      event.synchronize();
    return;
  }
  const c10::Stream stream = of(pending->to).getStream(pending->to);
  for (c10::Event& event : pending->here)
    event.block(stream);
  for (const at::Tensor& tensor : pending->tensors)
    keepForCurrentStream(tensor);
}

}  // namespace weft::pipe
