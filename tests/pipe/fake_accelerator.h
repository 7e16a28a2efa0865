// An accelerator of two devices for tests, where there is no real one: it computes on the CPU, at
// once, and keeps a book of what a real one would have been free to do in another order.
//
// Each stream has a vector clock (Fidge and Mattern, 1988), which events carry from one to another.
// A stream that reads what another wrote, or writes what another reads, without having waited for
// it, is a race; memory that is let go of while a stream uses it of which its allocator was not
// told is one too. The device is PyTorch's PrivateUse1.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace weft::pipe::fake {

// Registers it, once.
void install();
at::Device device(int index);

struct Report {
  std::vector<std::string> races;
  int copies = 0;               // between devices, and to and from the CPU
  int copies_on_computing = 0;  // of these, with a device's default stream, where stages compute
  int device_waits = 0;         // somebody waited for a whole device or stream
};
// What happened since the last report. No other thread uses the accelerator meanwhile.
Report report();

// A stage on the CPU looks at the tensor's values.
void hostReads(const at::Tensor& tensor);

}  // namespace weft::pipe::fake
