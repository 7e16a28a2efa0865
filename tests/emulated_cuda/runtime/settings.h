// What the environment says of the emulation. Every name begins with EMULATED_CUDA_.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulated {

struct Settings {
  // Of EMULATED_CUDA_DEVICES, the numbers on the machine of those that the process sees, in its
  // order: CUDA_VISIBLE_DEVICES, where the first that is no device's ends the list.
  std::vector<int> devices;
  std::uint64_t seed = 0;                     // EMULATED_CUDA_SEED: of the streams' delays
  unsigned max_delay_us = 500;                // EMULATED_CUDA_MAX_DELAY_US: of one piece of work
  std::size_t memory = std::size_t{1} << 30;  // EMULATED_CUDA_MEMORY: bytes of a device
  bool peer_access = true;  // EMULATED_CUDA_PEER_ACCESS=0: devices cannot see each other
  bool ipc = true;          // EMULATED_CUDA_IPC=0: handles are not supported
  long fail_copy = 0;       // EMULATED_CUDA_FAIL_COPY=N: the Nth copy fails; 0: none
};

// Read at the first call.
const Settings& settings();

// So many calls from now on the one that fails is made; 0: none is.
std::atomic<long>& failingCopy();  // at first Settings::fail_copy
std::atomic<long>& failingWait();
std::atomic<long>& failingRecord();
// The same of the copy that is held back until `holds` is false.
std::atomic<long>& heldCopy();
std::atomic<bool>& holds();
// Copies asked for so far.
std::atomic<unsigned long>& copies();
// Counts a call. True: it is to fail.
inline bool fails(std::atomic<long>& left) { return left > 0 && --left == 0; }

}  // namespace emulated
