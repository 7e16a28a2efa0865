// Device and pinned memory: which addresses are live, whose they are, and how another process
// opens them. Device memory is a memfd per allocation, so that a handle is a process and a
// descriptor. All functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tests/emulated_cuda/runtime/report.h"

namespace emulated {

struct Allocation {
  enum class Kind { kDevice, kPinned, kRegistered, kImported };
  Kind kind = Kind::kDevice;
  int device = 0;
  std::uintptr_t base = 0;
  std::size_t size = 0;
  int descriptor = -1;  // the memfd of kDevice
  Stack made{};
};

// Null where the device has less left (settings().memory).
void* allocateDevice(int device, std::size_t bytes);
void* allocatePinned(int device, std::size_t bytes);
void registerHost(int device, void* address, std::size_t bytes);

// Takes away a live allocation that begins there, whose device the host has waited for; false where
// there is none. Queued work that still uses it is reported.
bool release(void* address);

// The live allocation that holds the address.
std::optional<Allocation> findAllocation(const void* address);

// One that held the address and was freed, of the latest.
struct Ended {
  Allocation was;
  Stack end;
};
std::optional<Ended> findEnded(const void* address);

// Whether a range lies in one live allocation.
bool isLive(const void* address, std::size_t bytes);

std::size_t bytesFree(int device);

// How often another process's memory was opened so far.
unsigned long imports();

// What travels in a cudaIpcMemHandle_t. A later allocation may have the handle of one that was
// freed, as those of torch's expandable segments may.
struct MemoryHandle {
  std::uint64_t magic;
  std::int32_t process;
  std::int32_t descriptor;
  std::int32_t device;  // the machine's number, not the process's
  std::uint64_t size;
};

// The handle of the allocation that holds the address, by its base.
std::optional<MemoryHandle> exportMemory(const void* address);

// Opens another process's memory. Counts the opens of one allocation, as the driver does, and gives
// the same address for each. Null where the allocation or its process is gone.
void* importMemory(const MemoryHandle& handle);
bool closeImported(void* address);

}  // namespace emulated
