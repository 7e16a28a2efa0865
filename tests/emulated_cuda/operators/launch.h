// What the operators share: a device's tensor seen as one of the CPU, and a result that is written
// late, in stream order.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "tests/emulated_cuda/runtime/operators.h"

namespace emulated {

// A tensor of the CPU over the same bytes; it keeps nothing alive, as a kernel's pointer does not.
at::Tensor onHost(const at::Tensor& tensor);

// One operator's work on the current stream of a device. An operator computes at once what it has
// read, after its own stream, and writes the results late: who reads them, or the bytes that
// it has read, without waiting for the stream is found out.
class Launch {
 public:
  // Waits for the current stream of the device.
  explicit Launch(c10::DeviceIndex device);

  void reads(const at::Tensor& tensor);
  // `value`, of the CPU, comes into `target` when the stream is there.
  void writes(const at::Tensor& target, at::Tensor value);
  void run();

 private:
  void note(const at::Tensor& tensor, bool write);

  cudaStream_t stream_;
  std::vector<EmulatedAccess> accesses_;
  std::vector<std::pair<at::Tensor, at::Tensor>>
      late_;  // the target as onHost() sees it, the value
};

}  // namespace emulated
