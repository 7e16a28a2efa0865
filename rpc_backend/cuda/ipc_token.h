// The token of CUDA IPC: where in device memory the tensors of one message are, as bytes. The
// layout is in docs/design/wire_format.md. Plain data, no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft::rpc {

struct IpcToken {
  struct Device {
    std::string bus_id;  // PCI; device numbers differ between processes
    std::string event;   // its IPC handle; recorded when the tensors of this device are ready
  };
  struct Segment {  // one allocation of torch's
    std::uint8_t device = 0;
    std::string handle;
  };
  struct Place {  // of a tensor
    std::uint32_t segment = 0;
    std::uint64_t offset = 0;  // bytes
  };
  // Grows whenever the sender's allocator gives a segment back to the driver: another one may have
  // its handle from then on.
  std::uint64_t generation = 0;
  std::vector<Device> devices;
  std::vector<Segment> segments;
  std::vector<Place> places;

  std::vector<std::byte> toBytes() const;
  // Any bytes give a token whose indices are right, or c10::Error.
  static IpcToken fromBytes(std::span<const std::byte> bytes);
};

}  // namespace weft::rpc
