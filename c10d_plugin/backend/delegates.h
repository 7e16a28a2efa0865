// Delegates: a group's other backends, one for each kind of device that is not the CPU: NCCL for
// CUDA, or Weft's own where ranks share a device (shared_devices.h). Each is made for the first
// tensor on such a device, or when the group is told to connect a device, and handles all
// operations on such tensors from then on.
//
// The group's creator provides MakeDelegate: torch's NCCL backend exists only where torch was built
// with it, and Python can ask torch for it, so libweft.so need not link it.
//
// Threads: any thread may call any member. No lock is held while a delegate is called; while one is
// made, other threads that need the same device wait.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace weft::process_group {

// What a delegate is made from: the same ranks, and a part of the Store of its own.
struct DelegateSpec {
  c10::Device device{c10::DeviceType::CPU};  // the first tensor's; may lack an index
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};
  std::string group_name;
  std::vector<std::uint64_t> global_ranks;
  // The size of each rank's buffer for tensors, if ranks share a device.
  std::size_t staging_bytes = std::size_t{32} << 20;
};

// Null when there is no backend for that device; throws its failure. May take the GIL.
using MakeDelegate = std::function<c10::intrusive_ptr<c10d::Backend>(const DelegateSpec&)>;

class Delegates {
 public:
  // `make` may be empty: then only the CPU is served. `spec` lacks its device.
  Delegates(MakeDelegate make, DelegateSpec spec)
      : make_(std::move(make)), spec_(std::move(spec)) {}

  // Throws c10::Error when there is none for that device, or the group has ended.
  const c10::intrusive_ptr<c10d::Backend>& of(c10::Device device);
  bool any() const {
    bool found = false;
    each([&](c10d::Backend&) { found = true; });
    return found;
  }
  // Null when none was made.
  c10::intrusive_ptr<c10d::Backend> made(c10::DeviceType device) const;
  // For the delegates that exist, and those made later.
  void setGroupUid(const std::string& uid);
  void setTimeout(std::chrono::milliseconds timeout);

  std::uint64_t sequenceNumbers() const;  // of all together
  void setSequenceNumbers();
  bool failed() const;
  void abort();
  void shutdown();

 private:
  struct Slot {
    std::once_flag once;
    c10::intrusive_ptr<c10d::Backend> owner;  // written once, before `backend`
    std::atomic<c10d::Backend*> backend{nullptr};
  };

  void checkNotEnded(c10::Device device) const;
  void make(c10::Device device, Slot& slot);
  template <typename Function>
  void each(Function&& function) const {
    for (const Slot& slot : slots_) {
      if (auto* backend = slot.backend.load(std::memory_order_acquire)) function(*backend);
    }
  }

  const MakeDelegate make_;
  std::array<Slot, static_cast<std::size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES)> slots_;
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  DelegateSpec spec_;  // guarded by mutex_, as the next one
  std::string uid_;
};

}  // namespace weft::process_group
