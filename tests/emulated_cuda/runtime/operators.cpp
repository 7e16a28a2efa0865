#include "tests/emulated_cuda/runtime/operators.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "tests/emulated_cuda/runtime/access_check.h"
#include "tests/emulated_cuda/runtime/error.h"
#include "tests/emulated_cuda/runtime/memory.h"
#include "tests/emulated_cuda/runtime/report.h"
#include "tests/emulated_cuda/runtime/settings.h"
#include "tests/emulated_cuda/runtime/stream.h"

namespace emulated {
namespace {

// A process that reported something does not end as if all were well.
struct FailAtExit {
  FailAtExit() {
    std::atexit([] {
      if (findings() == 0 || expectsFindings()) return;
      std::fprintf(stderr, "emulated CUDA: %lu findings\n", findings());
      std::fflush(nullptr);
      std::_Exit(66);
    });
  }
};

}  // namespace

void loadOperators() {
  static std::once_flag once;
  std::call_once(once, [] {
    static const FailAtExit fail_at_exit;
    const char* path = std::getenv("EMULATED_CUDA_OPERATORS");
    if (path == nullptr) return;
    if (::dlopen(path, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      std::fprintf(stderr, "emulated CUDA: cannot load %s: %s\n", path, ::dlerror());
      std::_Exit(66);
    }
  });
}

}  // namespace emulated

cudaError_t emulatedCudaCheck(const EmulatedAccess* accesses, std::size_t count) {
  for (std::size_t at = 0; at < count; ++at) {
    const auto& [base, bytes, write] = accesses[at];
    if (bytes == 0 || emulated::isLive(base, bytes)) continue;
    emulated::reportBadUse(write != 0 ? "a kernel's write" : "a kernel's read", base, bytes);
    return emulated::result(cudaErrorIllegalAddress);
  }
  return cudaSuccess;
}

cudaError_t emulatedCudaLaunch(cudaStream_t handle, const EmulatedAccess* accesses,
                               std::size_t count, void (*run)(void*), void* data) {
  auto* stream = emulated::streamOf(handle);
  if (stream == nullptr) return emulated::result(cudaErrorInvalidResourceHandle);
  if (const auto error = emulatedCudaCheck(accesses, count); error != cudaSuccess) return error;
  std::vector<emulated::Access> checked;
  for (std::size_t at = 0; at < count; ++at)
    checked.push_back({reinterpret_cast<std::uintptr_t>(accesses[at].base), accesses[at].bytes,
                       accesses[at].write != 0});
  stream->launch(checked, [=] { run(data); });
  return cudaSuccess;
}

cudaError_t emulatedCudaDrain(cudaStream_t handle) {
  auto* stream = emulated::streamOf(handle);
  if (stream == nullptr) return emulated::result(cudaErrorInvalidResourceHandle);
  stream->drain();
  return cudaSuccess;
}

unsigned long emulatedCudaFindings() { return emulated::findings(); }

void emulatedCudaFailCopy(long number) { emulated::failingCopy() = number; }

void emulatedCudaFailWait(long number) { emulated::failingWait() = number; }

void emulatedCudaFailRecord(long number) { emulated::failingRecord() = number; }

void emulatedCudaHoldCopy(long number) {
  if (number == 0) {
    emulated::holds() = false;
    emulated::holds().notify_all();
  }
  emulated::heldCopy() = number;
}

unsigned long emulatedCudaCopies() { return emulated::copies(); }

unsigned long emulatedCudaOpens() { return emulated::imports(); }

void emulatedCudaSeed(unsigned long seed) { emulated::seedDelays(seed); }
