// Torch's operators on the emulated devices, which live in a library of their own because it needs
// torch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace emulated {

// Loads the library that EMULATED_CUDA_OPERATORS names, once, when the first memory is asked for:
// torch is there then, and no operator has run on a device yet.
void loadOperators();

}  // namespace emulated

extern "C" {

struct EmulatedAccess {
  const void* base;
  std::size_t bytes;
  int write;
};

// cudaErrorIllegalAddress where no live allocation holds one of them, which is reported. A "kernel"
// that computes before it is launched asks before it reads.
cudaError_t emulatedCudaCheck(const EmulatedAccess* accesses, std::size_t count);

// Runs a "kernel" in stream order, late; run(data) is called once, on the stream's thread.
// The accesses are checked as those of copies are, also by emulatedCudaCheck(): then nothing runs.
cudaError_t emulatedCudaLaunch(cudaStream_t stream, const EmulatedAccess* accesses,
                               std::size_t count, void (*run)(void*), void* data);

// Waits for the stream, so that a "kernel" may compute what it will write. A kernel's launch waits
// for nothing: no order between streams comes of it.
cudaError_t emulatedCudaDrain(cudaStream_t stream);

// How many races, uses after free and frees of what is in use were reported so far.
unsigned long emulatedCudaFindings();

// Begins other delays on all streams.
void emulatedCudaSeed(unsigned long seed);

// From now on counted, the call of that number fails; 0: none does. Copies, the host's waits for an
// event, and records of one.
void emulatedCudaFailCopy(long number);
void emulatedCudaFailWait(long number);
void emulatedCudaFailRecord(long number);
// Holds back the copy of that number from now on, and its stream with it; 0: no longer.
void emulatedCudaHoldCopy(long number);
// How many have been asked for.
unsigned long emulatedCudaCopies();
// How often cudaIpcOpenMemHandle() has opened something so far.
unsigned long emulatedCudaOpens();
}
