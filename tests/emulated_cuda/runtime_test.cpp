// The emulated runtime by its own functions, as torch calls them.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/emulated_cuda/runtime/access_check.h"
#include "tests/emulated_cuda/runtime/stream.h"

namespace {

constexpr std::size_t kBytes = 4096;

char* allocate() {
  void* at = nullptr;
  EXPECT_EQ(cudaMalloc(&at, kBytes), cudaSuccess);
  return static_cast<char*>(at);
}

cudaStream_t makeStream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  return stream;
}

cudaEvent_t makeEvent() {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreate(&event), cudaSuccess);
  return event;
}

void fill(char* at, int value, cudaStream_t stream) {
  EXPECT_EQ(cudaMemsetAsync(at, value, kBytes, stream), cudaSuccess);
}

void copy(char* to, const char* from, cudaStream_t stream) {
  EXPECT_EQ(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
}

// Holds a stream back until it is told to go on.
class Hold {
 public:
  explicit Hold(cudaStream_t stream) {
    emulated::streamOf(stream)->enqueue([this] { go_.wait(false); });
  }
  void end() {
    go_ = true;
    go_.notify_all();
  }

 private:
  std::atomic<bool> go_{false};
};

class EmulatedCuda : public testing::Test {
 protected:
  unsigned long found() const { return emulated::findings() - before_; }

  const unsigned long before_ = emulated::findings();
};

TEST_F(EmulatedCuda, WorkRunsWhenTheStreamComesToIt) {
  auto* at = allocate();
  ASSERT_EQ(cudaMemset(at, 0, kBytes), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  auto* const stream = makeStream();
  Hold hold(stream);
  fill(at, 7, stream);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(at[0], 0);
  hold.end();
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(at[0], 7);
  EXPECT_EQ(found(), 0U);
}

TEST_F(EmulatedCuda, AnEventOrdersTwoStreams) {
  auto *from = allocate(), *to = allocate();
  auto *first = makeStream(), *second = makeStream();
  auto* const event = makeEvent();
  fill(from, 5, first);
  cudaEventRecord(event, first);
  cudaStreamWaitEvent(second, event, 0);
  copy(to, from, second);
  EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(to[kBytes - 1], 5);
  EXPECT_EQ(found(), 0U);
}

TEST_F(EmulatedCuda, AReadThatDoesNotWaitIsReported) {
  auto *from = allocate(), *to = allocate();
  auto *first = makeStream(), *second = makeStream();
  fill(from, 5, first);
  copy(to, from, second);
  EXPECT_EQ(found(), 1U);
}

TEST_F(EmulatedCuda, AWriteOverWhatIsStillReadIsReported) {
  auto *from = allocate(), *to = allocate();
  auto *first = makeStream(), *second = makeStream();
  copy(to, from, first);
  fill(from, 5, second);
  EXPECT_EQ(found(), 1U);
}

TEST_F(EmulatedCuda, TheHostsWaitOrdersWhatIsAskedAfterIt) {
  auto* at = allocate();
  auto *first = makeStream(), *second = makeStream();
  fill(at, 5, first);
  cudaStreamSynchronize(first);
  fill(at, 6, second);
  EXPECT_EQ(found(), 0U);
}

TEST_F(EmulatedCuda, AnEarlierRecordOfAnEventDoesNotStandForALaterOne) {
  auto* at = allocate();
  auto *first = makeStream(), *second = makeStream();
  auto* const event = makeEvent();
  cudaEventRecord(event, first);
  fill(at, 5, first);  // after the record
  cudaStreamWaitEvent(second, event, 0);
  fill(at, 6, second);
  EXPECT_EQ(found(), 1U);
}

TEST_F(EmulatedCuda, EachRecordOfAnEventIsAwaitedForItself) {
  auto* at = allocate();
  cudaMemset(at, 0, kBytes);
  auto *first = makeStream(), *second = makeStream(), *third = makeStream();
  auto* const event = makeEvent();
  Hold hold(first);
  fill(at, 5, first);
  cudaEventRecord(event, first);
  cudaStreamWaitEvent(second, event, 0);
  cudaEventRecord(event, third);  // is over long before the first record
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(second), cudaErrorNotReady);
  hold.end();
  EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(at[0], 5);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

TEST_F(EmulatedCuda, PartsOfOneAllocationAreApart) {
  auto* at = allocate();
  auto *first = makeStream(), *second = makeStream();
  cudaMemsetAsync(at, 1, kBytes / 2, first);
  cudaMemsetAsync(at + kBytes / 2, 2, kBytes / 2, second);
  EXPECT_EQ(found(), 0U);
  cudaMemsetAsync(at + kBytes / 2 - 1, 3, 2, second);
  EXPECT_EQ(found(), 1U);
}

TEST_F(EmulatedCuda, WhatIsFreedCannotBeUsed) {
  auto* at = allocate();
  EXPECT_EQ(cudaFree(at), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(at, 1, kBytes, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(found(), 1U);
  auto* other = allocate();
  EXPECT_EQ(cudaMemsetAsync(other, 1, kBytes + 1, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(found(), 2U);
}

TEST_F(EmulatedCuda, ADeviceHasNoMoreThanItsMemory) {
  void* at = nullptr;
  EXPECT_EQ(cudaMalloc(&at, std::size_t{1} << 40), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// What the other process does: it gets the two handles by a pipe.
int readAndWrite(int pipe) {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
  void *at = nullptr, *again = nullptr;
  cudaEvent_t filled = nullptr;
  const bool read = ::read(pipe, &memory, sizeof(memory)) == sizeof(memory) &&
                    ::read(pipe, &event, sizeof(event)) == sizeof(event);
  bool ok = read && cudaIpcOpenMemHandle(&at, memory, 0) == cudaSuccess &&
            cudaIpcOpenMemHandle(&again, memory, 0) == cudaSuccess && at == again &&
            cudaIpcOpenEventHandle(&filled, event) == cudaSuccess &&
            cudaEventSynchronize(filled) == cudaSuccess;
  ok = ok && static_cast<char*>(at)[0] == 5;
  ok = ok && cudaMemset(at, 6, kBytes) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess &&
       cudaIpcCloseMemHandle(at) == cudaSuccess && cudaIpcCloseMemHandle(at) == cudaSuccess &&
       cudaIpcCloseMemHandle(at) == cudaErrorInvalidValue;
  return ok ? 0 : 1;
}

TEST_F(EmulatedCuda, AnotherProcessOpensMemoryAndEvents) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const auto child = ::fork();
  if (child == 0) {
    ::execl("/proc/self/exe", "other", std::to_string(pipe[0]).c_str(), nullptr);
    std::_Exit(2);
  }
  auto* at = allocate();
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t handle;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming),
            cudaSuccess);
  auto* const stream = makeStream();
  Hold hold(stream);
  fill(at, 5, stream);
  cudaEventRecord(event, stream);
  ASSERT_EQ(cudaIpcGetMemHandle(&memory, at), cudaSuccess);
  ASSERT_EQ(cudaIpcGetEventHandle(&handle, event), cudaSuccess);
  void* own = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&own, memory, 0), cudaErrorInvalidValue) << "by its own process";
  ASSERT_EQ(::write(pipe[1], &memory, sizeof(memory)), static_cast<ssize_t>(sizeof(memory)));
  ASSERT_EQ(::write(pipe[1], &handle, sizeof(handle)), static_cast<ssize_t>(sizeof(handle)));
  hold.end();
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(at[0], 6);
}

TEST_F(EmulatedCuda, AKernelIsRefused) {
  EXPECT_EQ(cudaLaunchKernel(reinterpret_cast<const void*>(&allocate), {}, {}, nullptr, 0, nullptr),
            cudaErrorNotSupported);
}

}  // namespace

int main(int count, char** arguments) {
  if (std::strcmp(arguments[0], "other") == 0) return readAndWrite(std::atoi(arguments[1]));
  ::setenv("EMULATED_CUDA_EXPECT_FINDINGS", "1", 1);
  testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
