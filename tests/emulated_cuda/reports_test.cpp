// What the emulation reports, with the stacks of both calls that do not fit together.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/emulated_cuda/runtime/operators.h"
#include "tests/emulated_cuda/test_helpers.h"

// Each call that a report has to name is in a function of its own. The program is linked with
// -rdynamic, so that backtrace() finds their names.
#define NAMED extern "C" __attribute__((visibility("default"), noinline))

using emulated::testing::kBytes;

NAMED char* allocatesHere() {
  char* const at = emulated::testing::allocate();
  EXPECT_NE(at, nullptr);
  return at;
}
NAMED void freesHere(char* at) { EXPECT_EQ(cudaFree(at), cudaSuccess); }
NAMED void freesAgain(char* at) { EXPECT_EQ(cudaFree(at), cudaErrorInvalidValue); }
NAMED void writesHere(char* at, cudaStream_t stream) {
  EXPECT_EQ(cudaMemsetAsync(at, 5, kBytes, stream), cudaSuccess);
}
NAMED void writesTooLate(char* at) {
  EXPECT_EQ(cudaMemsetAsync(at, 5, kBytes, nullptr), cudaErrorInvalidValue);
}
NAMED void readsHere(char* to, const char* from, cudaStream_t stream) {
  EXPECT_EQ(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
}
NAMED void launchesHere(char* at, bool* ran) {
  const EmulatedAccess write{at, kBytes, 1};
  const auto run = [](void* data) { *static_cast<bool*>(data) = true; };
  EXPECT_EQ(emulatedCudaLaunch(nullptr, &write, 1, run, ran), cudaErrorIllegalAddress);
}

namespace emulated::testing {
namespace {

// What is reported meanwhile.
class Reports {
 public:
  Reports() { ::testing::internal::CaptureStderr(); }
  std::string end() { return ::testing::internal::GetCapturedStderr(); }
};

void expectStack(const std::string& report, const std::string& heading, const char* function) {
  const auto found = report.find("emulated CUDA: " + heading + ":\n");
  ASSERT_NE(found, std::string::npos) << "no " << heading << " in:\n" << report;
  const auto first = report.find('\n', found) + 1;
  const auto stack = report.substr(first, report.find("emulated CUDA:", first) - first);
  EXPECT_NE(stack.find(function), std::string::npos) << heading << " names no " << function << "\n"
                                                     << report;
}

void expectLifetime(const std::string& report) {
  expectStack(report, "it was allocated by", "allocatesHere");
  expectStack(report, "it was freed by", "freesHere");
}

// Two devices.
cudaStream_t makeStreamOf(int device) {
  EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
  auto* const stream = makeStream();
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  return stream;
}

TEST_F(EmulatedCuda, ACopyWithoutAnEventIsReportedWithBothStacks) {
  auto *from = allocate(), *to = allocate();
  Reports reports;
  writesHere(from, makeStream());
  readsHere(to, from, makeStream());
  const auto report = reports.end();
  EXPECT_NE(report.find("race: read after write"), std::string::npos) << report;
  expectStack(report, "the later call", "readsHere");
  expectStack(report, "the earlier call", "writesHere");
  EXPECT_EQ(found(), 1U);
}

TEST_F(EmulatedCuda, AUseAfterFreeIsReportedWithBothStacks) {
  auto* at = allocatesHere();
  freesHere(at);
  Reports reports;
  writesTooLate(at);
  const auto report = reports.end();
  EXPECT_NE(report.find("use after free: memset"), std::string::npos) << report;
  expectStack(report, "the use", "writesTooLate");
  expectLifetime(report);
  EXPECT_EQ(found(), 1U);
}

TEST_F(EmulatedCuda, AKernelThatUsesFreedMemoryIsReportedAndNotRun) {
  auto* at = allocatesHere();
  freesHere(at);
  bool ran = false;
  Reports reports;
  launchesHere(at, &ran);
  const auto report = reports.end();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_FALSE(ran);
  EXPECT_NE(report.find("use after free: a kernel's write"), std::string::npos) << report;
  expectStack(report, "the use", "launchesHere");
  expectLifetime(report);
  EXPECT_EQ(found(), 1U);
}

TEST_F(EmulatedCuda, MemoryThatIsFreedTwiceIsReportedWithBothStacks) {
  auto* at = allocatesHere();
  freesHere(at);
  Reports reports;
  freesAgain(at);
  const auto report = reports.end();
  expectStack(report, "the use", "freesAgain");
  expectLifetime(report);
  EXPECT_EQ(found(), 1U);
}

TEST_F(EmulatedCuda, AUseThatReachesTooFarIsReportedWithTheAllocation) {
  auto* at = allocatesHere();
  Reports reports;
  EXPECT_EQ(cudaMemsetAsync(at, 1, kBytes + 1, nullptr), cudaErrorInvalidValue);
  const auto report = reports.end();
  EXPECT_NE(report.find("use out of bounds: memset"), std::string::npos) << report;
  expectStack(report, "what begins there was allocated by", "allocatesHere");
}

TEST_F(EmulatedCuda, MemoryFreedWhileAnotherDeviceUsesItIsReportedWithBothStacks) {
  auto* at = allocate();
  auto* const stream = makeStreamOf(1);
  Hold hold(stream);
  writesHere(at, stream);
  Reports reports;
  freesHere(at);
  const auto report = reports.end();
  EXPECT_NE(report.find("memory freed while queued work uses it"), std::string::npos) << report;
  expectStack(report, "it is freed by", "freesHere");
  expectStack(report, "the work is of", "writesHere");
  EXPECT_EQ(found(), 1U);
  hold.end();
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);  // the work is done all the same
}

TEST_F(EmulatedCuda, FreeingWaitsForTheMemorysOwnDevice) {
  auto* at = allocate();
  auto *first = makeStream(), *second = makeStream();
  fill(at, 5, first);
  copy(allocate(), allocate(), second);
  freesHere(at);
  EXPECT_EQ(cudaStreamQuery(first), cudaSuccess);
  EXPECT_EQ(found(), 0U);
}

TEST_F(EmulatedCuda, WorkOfAnotherDeviceThatAnEventOrdersMayBeFollowedByAFree) {
  auto* at = allocate();
  auto *own = makeStream(), *other = makeStreamOf(1);
  auto* const event = makeEvent();
  fill(at, 5, other);
  cudaEventRecord(event, other);
  cudaStreamWaitEvent(own, event, 0);
  freesHere(at);
  EXPECT_EQ(found(), 0U);
}

}  // namespace
}  // namespace emulated::testing
