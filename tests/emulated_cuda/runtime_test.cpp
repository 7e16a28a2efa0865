// The emulated runtime by its own functions, as torch calls them.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/emulated_cuda/ipc_test.h"
#include "tests/emulated_cuda/test_helpers.h"

namespace emulated::testing {
namespace {

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
  ASSERT_EQ(cudaMemset(at, 0, kBytes), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // a memset does not wait for the device
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
  EXPECT_EQ(found(), 0U);
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

TEST_F(EmulatedCuda, AKernelIsRefused) {
  EXPECT_EQ(cudaLaunchKernel(reinterpret_cast<const void*>(&allocate), {}, {}, nullptr, 0, nullptr),
            cudaErrorNotSupported);
}

}  // namespace
}  // namespace emulated::testing

int main(int count, char** arguments) {
  if (const auto status = emulated::testing::runAsOther(arguments)) return *status;
  ::setenv("EMULATED_CUDA_EXPECT_FINDINGS", "1", 1);
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
