// Copies between devices beside the computation, as torchgpipe's (Kim et al. 2020, section 3.2).
//
// A tensor goes on its way as soon as the stage that made it has been started, on streams that do
// nothing but copy: one per device for what leaves and one for what arrives. So a stage computes
// one micro-batch while the next one's input comes in. Order is kept by events, between streams;
// nobody waits for a device. A CPU that needs the values waits for that one event.
//
//   maker's stream ---made--> its device's departures --+-- copy --> arrivals --here--> user's
//   stream
//
// Everything goes through c10's generic interface, so any accelerator will do that has streams and
// events; one without gets plain copies. Its memory is safe: allocators are told which streams use
// it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

namespace weft::pipe {

inline bool isAccelerator(c10::Device device) { return !device.is_cpu() && !device.is_meta(); }

// The tensor on that device; itself if it is there or undefined. Ordered by the devices' current
// streams.
at::Tensor moved(const at::Tensor& tensor, c10::Device device);

// Tensors on their way to one device. No pointer: none is.
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

  // Begins to copy those tensors that are elsewhere, and puts the copies in their places. Each is
  // ready, or will be by what its device's current stream has been told so far. Not differentiable.
  PendingCopyPtr send(const std::vector<at::Tensor*>& tensors, c10::Device to) const;
  // Before the tensors are used: the current stream of their device waits for them; where that is
  // the CPU, the calling thread does.
  static void wait(PendingCopyPtr pending);

 private:
  struct Sides {
    c10::Stream departures;
    c10::Stream arrivals;
  };
  // None for devices that have no such streams.
  const Sides* sidesOf(c10::Device device) const;
  bool takes(const at::Tensor& tensor, c10::Device to) const;

  std::vector<Sides> sides_;
};

}  // namespace weft::pipe
