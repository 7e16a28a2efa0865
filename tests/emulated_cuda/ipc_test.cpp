// Memory and events of the emulated runtime between processes.
#include "tests/emulated_cuda/ipc_test.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/emulated_cuda/runtime/operators.h"
#include "tests/emulated_cuda/test_helpers.h"

namespace emulated::testing {
namespace {

constexpr int kNoOtherUser = 3;
constexpr uid_t kNobody = 65534;

struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

// Both ends are inherited.
struct Pipe {
  Pipe() { EXPECT_EQ(::pipe(ends.data()), 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  std::array<int, 2> ends{};
};

bool send(int pipe, const Handles& handles) {
  return ::write(pipe, &handles, sizeof(handles)) == sizeof(handles);
}

bool receive(int pipe, Handles& handles) {
  return ::read(pipe, &handles, sizeof(handles)) == sizeof(handles);
}

pid_t start(const char* life, int pipe) {
  const auto child = ::fork();
  if (child == 0) {
    ::execl("/proc/self/exe", life, std::to_string(pipe).c_str(), nullptr);
    std::_Exit(2);
  }
  return child;
}

int statusOf(pid_t child) {
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

cudaEvent_t makeSharedEvent() {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming),
            cudaSuccess);
  return event;
}

Handles handlesOf(void* memory, cudaEvent_t event) {
  Handles handles{};
  EXPECT_EQ(cudaIpcGetMemHandle(&handles.memory, memory), cudaSuccess);
  EXPECT_EQ(cudaIpcGetEventHandle(&handles.event, event), cudaSuccess);
  return handles;
}

// The lives of other processes.

// Waits for the event, reads, and writes. Two opens of one memory are one address, and two closes.
int readAndWrite(int pipe) {
  Handles got{};
  void *at = nullptr, *again = nullptr;
  cudaEvent_t filled = nullptr;
  bool ok = receive(pipe, got) && cudaIpcOpenMemHandle(&at, got.memory, 0) == cudaSuccess &&
            cudaIpcOpenMemHandle(&again, got.memory, 0) == cudaSuccess && at == again &&
            emulatedCudaOpens() == 2 && cudaIpcOpenEventHandle(&filled, got.event) == cudaSuccess &&
            cudaEventSynchronize(filled) == cudaSuccess;
  ok = ok && static_cast<char*>(at)[0] == 5;
  ok = ok && cudaMemset(at, 6, kBytes) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess &&
       cudaIpcCloseMemHandle(at) == cudaSuccess && cudaIpcCloseMemHandle(at) == cudaSuccess &&
       cudaIpcCloseMemHandle(at) == cudaErrorInvalidValue;
  return ok ? 0 : 1;
}

// Lends memory, and ends.
int lend(int pipe) { return send(pipe, handlesOf(allocate(), makeSharedEvent())) ? 0 : 1; }

// Opens what a process lends that lets nobody look into it. Root may, unless it is another user.
int openAsAnotherUser(int pipe) {
  Handles got{};
  if (!receive(pipe, got)) return 1;
  if (::geteuid() == 0 && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) return kNoOtherUser;
  void* at = nullptr;
  cudaEvent_t event = nullptr;
  const bool refused = cudaIpcOpenMemHandle(&at, got.memory, 0) == cudaErrorInvalidValue &&
                       cudaIpcOpenEventHandle(&event, got.event) == cudaErrorInvalidResourceHandle;
  return refused ? 0 : 1;
}

// While it lives, /proc shows this process's descriptors to nobody but root.
struct Undumpable {
  Undumpable() { ::prctl(PR_SET_DUMPABLE, 0); }
  ~Undumpable() { ::prctl(PR_SET_DUMPABLE, 1); }
};

// The tests.

TEST_F(EmulatedCuda, AnotherProcessOpensMemoryAndEvents) {
  const Pipe pipe;
  const auto child = start("reader", pipe.ends[0]);
  auto* at = allocate();
  auto* const event = makeSharedEvent();
  auto* const stream = makeStream();
  Hold hold(stream);
  fill(at, 5, stream);
  cudaEventRecord(event, stream);
  const auto handles = handlesOf(at, event);
  void* own = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&own, handles.memory, 0), cudaErrorInvalidValue)
      << "by its own process";
  ASSERT_TRUE(send(pipe.ends[1], handles));
  hold.end();
  EXPECT_EQ(statusOf(child), 0);
  EXPECT_EQ(at[0], 6);
}

TEST_F(EmulatedCuda, WhatADeadProcessLentIsRefused) {
  const Pipe pipe;
  const auto child = start("lender", pipe.ends[1]);
  ASSERT_EQ(statusOf(child), 0);
  Handles got{};
  ASSERT_TRUE(receive(pipe.ends[0], got));
  void* at = nullptr;
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&at, got.memory, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaIpcOpenEventHandle(&event, got.event), cudaErrorInvalidResourceHandle);
}

TEST_F(EmulatedCuda, WhoMayNotLookIntoAProcessIsRefused) {
  const Pipe pipe;
  const auto handles = handlesOf(allocate(), makeSharedEvent());
  const Undumpable undumpable;
  const auto child = start("stranger", pipe.ends[0]);
  ASSERT_TRUE(send(pipe.ends[1], handles));
  const int status = statusOf(child);
  if (status == kNoOtherUser) GTEST_SKIP() << "root cannot become another user here";
  EXPECT_EQ(status, 0);
}

}  // namespace

std::optional<int> runAsOther(char** arguments) {
  const std::string_view life = arguments[0];
  if (life != "reader" && life != "lender" && life != "stranger") return std::nullopt;
  const int pipe = std::atoi(arguments[1]);
  return life == "reader"   ? readAndWrite(pipe)
         : life == "lender" ? lend(pipe)
                            : openAsAnotherUser(pipe);
}

}  // namespace emulated::testing
