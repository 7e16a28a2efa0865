// Who completes a call: the thread that waits for it, or, when it does not wait, somebody else.
#include "rpc_backend/answer_seat.h"

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

AnswerSeat::Place claim() {
  Completion displaced;
  AnswerSeat::Place place = AnswerSeat::claim(displaced);
  EXPECT_FALSE(displaced);
  return place;
}

bool give(const AnswerSeat::Place& place, std::function<void()> task) {
  Completion completion = std::move(task);
  return place.give(completion);
}

TEST(AnswerSeat, WhoeverWaitsCompletesTheCall) {
  for (const auto pause : {0ms, 20ms}) {  // found spinning, or asleep
    AnswerSeat::take();
    const AnswerSeat::Place place = claim();
    std::thread::id by;
    auto loop = std::async(std::launch::async, [&] {
      takes(pause);
      return give(place, [&] { by = std::this_thread::get_id(); });
    });
    AnswerSeat::wait();
    EXPECT_EQ(by, std::this_thread::get_id());
    EXPECT_TRUE(loop.get());
    EXPECT_FALSE(give(place, [] { ADD_FAILURE() << "completed twice"; }));
  }
}

TEST(AnswerSeat, NobodySitsWithoutTakingASeat) {
  EXPECT_FALSE(give(claim(), [] { ADD_FAILURE(); }));
  AnswerSeat::wait();
  AnswerSeat::take();
  AnswerSeat::wait();  // no call was sent
  EXPECT_FALSE(give(claim(), [] { ADD_FAILURE(); }));
}

TEST(AnswerSeat, WhoLeavesIsNotServedLater) {
  AnswerSeat::take();
  const AnswerSeat::Place place = claim();
  AnswerSeat::leave();
  Completion completion = [] {};
  EXPECT_FALSE(place.give(completion));
  EXPECT_TRUE(completion) << "it must be left for a completer";
}

TEST(AnswerSeat, WhatCameBeforeLeavingIsCompletedThen) {
  AnswerSeat::take();
  const AnswerSeat::Place place = claim();
  bool done = false;
  EXPECT_TRUE(give(place, [&] { done = true; }));
  EXPECT_FALSE(done);
  AnswerSeat::leave();
  EXPECT_TRUE(done);
}

TEST(AnswerSeat, TheLastCallSentIsTheOneWaitedFor) {
  AnswerSeat::take();
  const AnswerSeat::Place first = claim();
  const AnswerSeat::Place second = claim();
  EXPECT_FALSE(give(first, [] { ADD_FAILURE(); }));
  bool early = false;
  EXPECT_TRUE(give(second, [&] { early = true; }));
  Completion displaced;
  const AnswerSeat::Place third = AnswerSeat::claim(displaced);
  ASSERT_TRUE(displaced);
  displaced();
  EXPECT_TRUE(early);
  bool done = false;
  EXPECT_TRUE(give(third, [&] { done = true; }));
  AnswerSeat::wait();
  EXPECT_TRUE(done);
}

TEST(AnswerSeat, ACompletionMayMakeACallItself) {
  AnswerSeat::take();
  bool inner = false;
  EXPECT_TRUE(give(claim(), [&] {
    AnswerSeat::take();
    EXPECT_TRUE(give(claim(), [&] { inner = true; }));
    AnswerSeat::wait();
    EXPECT_TRUE(inner);
  }));
  AnswerSeat::wait();
  EXPECT_TRUE(inner);
}

TEST(AnswerSeat, NoAnswerIsReadUnderAStateOfTorchs) {
  {
    const c10::InferenceMode inference;
    AnswerSeat::take();
  }
  EXPECT_FALSE(give(claim(), [] { ADD_FAILURE(); }));
}

TEST(AnswerSeat, ManyThreadsEachGetTheirOwn) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 300;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([] {
      int done = 0;
      for (int i = 0; i < kCalls; ++i) {
        AnswerSeat::take();
        const AnswerSeat::Place place = claim();
        std::thread loop([&] { EXPECT_TRUE(give(place, [&] { ++done; })); });
        AnswerSeat::wait();
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
