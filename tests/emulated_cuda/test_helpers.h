// What the tests of the emulated runtime share.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>

#include "tests/emulated_cuda/runtime/report.h"
#include "tests/emulated_cuda/runtime/stream.h"

namespace emulated::testing {

inline constexpr std::size_t kBytes = 4096;

inline char* allocate() {
  void* at = nullptr;
  EXPECT_EQ(cudaMalloc(&at, kBytes), cudaSuccess);
  return static_cast<char*>(at);
}

inline cudaStream_t makeStream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  return stream;
}

inline cudaEvent_t makeEvent() {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreate(&event), cudaSuccess);
  return event;
}

inline void fill(char* at, int value, cudaStream_t stream) {
  EXPECT_EQ(cudaMemsetAsync(at, value, kBytes, stream), cudaSuccess);
}

inline void copy(char* to, const char* from, cudaStream_t stream) {
  EXPECT_EQ(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
}

// Holds a stream back until it is told to go on.
class Hold {
 public:
  explicit Hold(cudaStream_t stream) {
    streamOf(stream)->enqueue([this] { go_.wait(false); });
  }
  void end() {
    go_ = true;
    go_.notify_all();
  }

 private:
  std::atomic<bool> go_{false};
};

class EmulatedCuda : public ::testing::Test {
 protected:
  unsigned long found() const { return findings() - before_; }

  const unsigned long before_ = findings();
};

}  // namespace emulated::testing
