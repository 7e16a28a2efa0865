// Who completes a call: the thread that waits for it, or, when it does not wait, somebody else.
#include "rpc_backend/call/inline_waiter.h"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "tests/support/waiting.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)

InlineWaiter::Handle claim() {
  Completion displaced;
  InlineWaiter::Handle handle = InlineWaiter::claim(displaced);
  EXPECT_FALSE(displaced);
  return handle;
}

bool give(const InlineWaiter::Handle& handle, std::function<void()> task) {
  Completion completion = std::move(task);
  return handle.give(completion);
}

TEST(InlineWaiter, WhoeverWaitsCompletesTheCall) {
  for (const auto pause : {0ms, 20ms}) {  // found spinning, or asleep
    InlineWaiter::take();
    const InlineWaiter::Handle handle = claim();
    std::thread::id by;
    auto loop = std::async(std::launch::async, [&] {
      takes(pause);
      return give(handle, [&] { by = std::this_thread::get_id(); });
    });
    InlineWaiter::wait();
    EXPECT_EQ(by, std::this_thread::get_id());
    EXPECT_TRUE(loop.get());
    EXPECT_FALSE(give(handle, [] { ADD_FAILURE() << "completed twice"; }));
  }
}

TEST(InlineWaiter, NobodySitsWithoutTakingASeat) {
  EXPECT_FALSE(give(claim(), [] { ADD_FAILURE(); }));
  InlineWaiter::wait();
  InlineWaiter::take();
  InlineWaiter::wait();  // no call was sent
  EXPECT_FALSE(give(claim(), [] { ADD_FAILURE(); }));
}

TEST(InlineWaiter, WhoLeavesIsNotServedLater) {
  InlineWaiter::take();
  const InlineWaiter::Handle handle = claim();
  InlineWaiter::leave();
  Completion completion = [] {};
  EXPECT_FALSE(handle.give(completion));
  EXPECT_TRUE(completion) << "it must be left for a completer";
}

TEST(InlineWaiter, WhatCameBeforeLeavingIsCompletedThen) {
  InlineWaiter::take();
  const InlineWaiter::Handle handle = claim();
  bool done = false;
  EXPECT_TRUE(give(handle, [&] { done = true; }));
  EXPECT_FALSE(done);
  InlineWaiter::leave();
  EXPECT_TRUE(done);
}

TEST(InlineWaiter, TheLastCallSentIsTheOneWaitedFor) {
  InlineWaiter::take();
  const InlineWaiter::Handle first = claim();
  const InlineWaiter::Handle second = claim();
  EXPECT_FALSE(give(first, [] { ADD_FAILURE(); }));
  bool early = false;
  EXPECT_TRUE(give(second, [&] { early = true; }));
  Completion displaced;
  const InlineWaiter::Handle third = InlineWaiter::claim(displaced);
  ASSERT_TRUE(displaced);
  displaced();
  EXPECT_TRUE(early);
  bool done = false;
  EXPECT_TRUE(give(third, [&] { done = true; }));
  InlineWaiter::wait();
  EXPECT_TRUE(done);
}

TEST(InlineWaiter, ACompletionMayMakeACallItself) {
  InlineWaiter::take();
  bool inner = false;
  EXPECT_TRUE(give(claim(), [&] {
    InlineWaiter::take();
    EXPECT_TRUE(give(claim(), [&] { inner = true; }));
    InlineWaiter::wait();
    EXPECT_TRUE(inner);
  }));
  InlineWaiter::wait();
  EXPECT_TRUE(inner);
}

TEST(InlineWaiter, NoAnswerIsReadUnderAStateOfTorchs) {
  {
    const c10::InferenceMode inference;
    InlineWaiter::take();
  }
  EXPECT_FALSE(give(claim(), [] { ADD_FAILURE(); }));
}

TEST(InlineWaiter, ManyThreadsEachGetTheirOwn) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 300;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([] {
      int done = 0;
      for (int i = 0; i < kCalls; ++i) {
        InlineWaiter::take();
        const InlineWaiter::Handle handle = claim();
        std::thread loop([&] { EXPECT_TRUE(give(handle, [&] { ++done; })); });
        InlineWaiter::wait();
        EXPECT_EQ(done, i + 1);
        loop.join();
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

}  // namespace
}  // namespace weft::rpc
