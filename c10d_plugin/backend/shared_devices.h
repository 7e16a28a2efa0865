// Which ranks of a group share a device, and the backend for a group that has such ranks, which
// NCCL refuses. What calls CUDA is in another shared object, which says here that it is there.
//
// Threads: any thread may call; registration once, before the first group asks.
#pragma once

#include <string>

#include "c10d_plugin/backend/delegates.h"
#include "transport/base/api.h"

namespace weft::process_group {

class SharedDevices {
 public:
  virtual ~SharedDevices() = default;

  // What tells one device of a host from its others, in every process: its PCI address. Without an
  // index: the current device's.
  virtual std::string address(c10::Device device) = 0;
  // Connects the ranks of `spec`. They meet on the host through `meeting`, a group of their own
  // for CPU tensors, which the backend then owns. Throws.
  virtual c10::intrusive_ptr<c10d::Backend> make(const DelegateSpec& spec,
                                                 c10::intrusive_ptr<c10d::Backend> meeting) = 0;
};

// The registered object is never released.
WEFT_API void registerSharedDevices(SharedDevices* devices);

// All ranks call it, and wait for each other within spec.timeout. Null where each rank has a device
// of its own, in a group of one, and where nothing is registered. Throws c10::DistBackendError that
// names the ranks that did not come, or those that share a device though the group spans hosts.
// `interface`: as in WeftBackend::Options.
WEFT_API c10::intrusive_ptr<c10d::Backend> makeSharedDeviceBackend(const DelegateSpec& spec,
                                                                   const std::string& interface);

}  // namespace weft::process_group
