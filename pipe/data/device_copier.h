// Copies between devices during the computation, as in torchgpipe (Kim et al. 2020, section 3.2).
//
// A copy begins as soon as the stage that makes the tensor has been started, on streams that do
// nothing but copy: one per device for what leaves and one for what arrives. So a stage computes
// one micro-batch while the next one's input comes in. Events keep the order between streams, and
// no thread waits for a device. A CPU that needs the values waits for that one event.
//
//   maker's stream --made--> departures of its device -- copy --> arrivals --here--> user's stream
//
// All calls use c10's generic interface: any accelerator with streams and events works, and one
// without gets plain copies. Allocators are told which streams use a tensor's memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <vector>

namespace weft::pipe {

inline bool isAccelerator(c10::Device device) { return !device.is_cpu() && !device.is_meta(); }

// Nothing for the CPU, which is no thread's current device.
inline std::optional<c10::Device> ifAccelerator(c10::Device device) {
  return isAccelerator(device) ? std::optional(device) : std::nullopt;
}

// The tensor on that device; itself if it is there or undefined. Ordered by the devices' current
// streams.
at::Tensor moved(const at::Tensor& tensor, c10::Device device);

// Once the tensor is freed, its memory is not used again before its device's current stream has
// done what it was given until then.
void keepForCurrentStream(const at::Tensor& tensor);

// Copies under way to one device. nullptr: there are none.
struct PendingCopy {
  explicit PendingCopy(c10::Device device) : to(device) {}
  const c10::Device to;
  std::vector<c10::Event> here;
  std::vector<at::Tensor> tensors;
};
using PendingCopyPtr = std::unique_ptr<PendingCopy>;

// Any thread may call it.
class DeviceCopier {
 public:
  // For a pipeline on these devices. Takes streams from the accelerators' pools.
  explicit DeviceCopier(const std::vector<c10::Device>& devices);

  // Begins to copy the tensors that are elsewhere, and puts the copies in their places. Each is
  // made by what its device's current stream has been given so far. Not differentiable.
  PendingCopyPtr send(const std::vector<at::Tensor*>& tensors, c10::Device to) const;
  // Call before the tensors are used: the current stream of their device waits for the copies; for
  // the CPU, the calling thread does.
  static void wait(PendingCopyPtr pending);

 private:
  struct Sides {
    c10::Stream departures;
    c10::Stream arrivals;
  };
  // nullptr for devices that have no such streams.
  const Sides* sidesOf(c10::Device device) const;
  bool takes(const at::Tensor& tensor, c10::Device to) const;

  std::vector<Sides> sides_;
};

}  // namespace weft::pipe
