// Whose turn it is in a group: order, the calling thread's way in, callbacks that block, the end.
#include "c10d_plugin/engine/op_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "tests/support/no_more_threads.h"
#include "tests/support/waiting.h"

namespace weft::collectives {
namespace {

using std::chrono::milliseconds;
constexpr std::chrono::seconds kPatience{30};

class Job final : public OpQueue::Task {
 public:
  explicit Job(std::function<void()> run, std::function<void()> finish = {})
      : run_(std::move(run)), finish_(std::move(finish)) {}
  void run() noexcept override { run_(); }
  void finish() noexcept override {
    if (finish_) finish_();
  }
  bool finishMayBlock() noexcept override { return static_cast<bool>(finish_); }

 private:
  std::function<void()> run_, finish_;
};

bool push(OpQueue& queue, std::function<void()> run, std::function<void()> finish = {}) {
  return queue.push(std::make_unique<Job>(std::move(run), std::move(finish)));
}

TEST(OpQueue, RunsOneAtATimeInTheOrderTheyCame) {
  OpQueue queue;
  std::vector<int> ran;  // unguarded on purpose: whoever has the turn is alone
  std::atomic<int> inside{0};
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(push(queue, [&, i] {
      EXPECT_EQ(inside.fetch_add(1), 0);
      ran.push_back(i);
      inside.fetch_sub(1);
    }));
  }
  ASSERT_TRUE(queue.drain(kPatience));
  ASSERT_EQ(ran.size(), 1000U);
  for (int i = 0; i < 1000; ++i)
    EXPECT_EQ(ran[static_cast<std::size_t>(i)], i);
}

TEST(OpQueue, LetsACallerInOnlyWhenNothingIsBeforeIt) {
  OpQueue queue;
  ASSERT_TRUE(queue.tryEnter());
  EXPECT_FALSE(queue.tryEnter());
  std::promise<void> ran;
  ASSERT_TRUE(push(queue, [&] { ran.set_value(); }));
  auto done = ran.get_future();
  EXPECT_EQ(done.wait_for(milliseconds(50)), std::future_status::timeout);  // the turn is taken
  queue.leave();
  ASSERT_EQ(done.wait_for(kPatience), std::future_status::ready);
  ASSERT_TRUE(queue.drain(kPatience));
  EXPECT_TRUE(queue.tryEnter());
  queue.leave();
}

TEST(OpQueue, CallersAndTasksTakeTurns) {
  OpQueue queue;
  std::atomic<int> inside{0};
  std::atomic<int> count{0};
  const auto work = [&] {
    EXPECT_EQ(inside.fetch_add(1), 0);
    count.fetch_add(1);
    inside.fetch_sub(1);
  };
  std::vector<std::thread> callers;
  for (int thread = 0; thread < 4; ++thread) {
    callers.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        if (queue.tryEnter()) {
          work();
          queue.leave();
        } else {
          ASSERT_TRUE(push(queue, work));
        }
      }
    });
  }
  for (std::thread& caller : callers)
    caller.join();
  ASSERT_TRUE(queue.drain(kPatience));
  EXPECT_EQ(count.load(), 2000);
}

// A callback that waits for a later operation of the same queue would hang on one thread.
TEST(OpQueue, ACallbackMayWaitForALaterOperation) {
  OpQueue queue;
  std::promise<void> later, finished;
  auto waits = later.get_future();
  std::future_status status = std::future_status::timeout;
  ASSERT_TRUE(push(
      queue, [] {},
      [&] {
        ASSERT_TRUE(push(queue, [&] { later.set_value(); }));
        status = waits.wait_for(kPatience);
        finished.set_value();
      }));
  ASSERT_EQ(finished.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(status, std::future_status::ready);
}

TEST(OpQueue, WhereNoThreadCanBeStartedTheCallerRunsWhatItPushes) {
  OpQueue queue;
  std::vector<std::thread::id> ran;
  {
    const NoMoreThreads here;
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE(push(
          queue, [&] { ran.push_back(std::this_thread::get_id()); }, [] {}));
    EXPECT_EQ(ran, std::vector<std::thread::id>(3, std::this_thread::get_id()));
  }
  ASSERT_TRUE(push(queue, [&] { ran.push_back(std::this_thread::get_id()); }));
  ASSERT_TRUE(queue.drain(kPatience));
  ASSERT_EQ(ran.size(), 4U);
  EXPECT_NE(ran[3], std::this_thread::get_id());
  queue.close();
  EXPECT_TRUE(queue.waitForThreads(kPatience));
}

// It waits for the turn, as a thread would.
TEST(OpQueue, WhereNoThreadCanBeStartedTheCallerWaitsForItsTurn) {
  OpQueue queue;
  ASSERT_TRUE(queue.tryEnter());
  std::atomic<bool> ran{false};
  std::promise<void> go;
  std::thread caller([&] {
    go.get_future().wait();
    push(queue, [&] { ran = true; });
  });
  {
    const NoMoreThreads here;
    go.set_value();
    letOthersBlock(milliseconds(20));
    EXPECT_FALSE(ran);
    queue.leave();
    caller.join();
  }
  EXPECT_TRUE(queue.drain(kPatience));
  EXPECT_TRUE(ran);
}

TEST(OpQueue, WithoutAnotherThreadTasksWaitForTheOneThatFinishes) {
  OpQueue queue;
  std::promise<void> blocked, release;
  std::atomic<int> ran{0};
  ASSERT_TRUE(push(
      queue, [] {},
      [&, held = release.get_future().share()] {
        blocked.set_value();
        held.wait_for(kPatience);
      }));
  ASSERT_EQ(blocked.get_future().wait_for(kPatience), std::future_status::ready);
  const NoMoreThreads here;
  ASSERT_TRUE(push(queue, [&] { ++ran; }));
  ASSERT_TRUE(push(queue, [&] { ++ran; }));
  EXPECT_FALSE(queue.drain(milliseconds(20)));
  release.set_value();
  EXPECT_TRUE(queue.drain(kPatience));
  EXPECT_EQ(ran, 2);
  queue.close();
  EXPECT_TRUE(queue.waitForThreads(kPatience));
}

TEST(OpQueue, WithoutAnotherThreadACallbackMayStillWaitForALaterOperation) {
  OpQueue queue;
  std::promise<void> later, finished;
  auto waits = later.get_future();
  std::future_status status = std::future_status::timeout;
  std::promise<void> entered, go;
  ASSERT_TRUE(push(
      queue, [] {},
      [&] {
        entered.set_value();
        go.get_future().wait_for(kPatience);
        push(queue, [&] { later.set_value(); });
        status = waits.wait_for(kPatience);
        finished.set_value();
      }));
  ASSERT_EQ(entered.get_future().wait_for(kPatience), std::future_status::ready);
  const NoMoreThreads here;
  go.set_value();
  ASSERT_EQ(finished.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(status, std::future_status::ready);
}

// Each waits for what it pushes.
TEST(OpQueue, AnyNumberOfCallbacksMayWaitForLaterOperations) {
  constexpr std::size_t kCallbacks = 200;
  std::atomic<std::size_t> served{0};
  OpQueue queue;
  std::promise<void> release;
  auto held = release.get_future().share();
  ASSERT_TRUE(push(queue, [held] { held.wait(); }));
  for (std::size_t i = 0; i < kCallbacks; ++i) {
    ASSERT_TRUE(push(
        queue, [] {},
        [&] {
          std::promise<void> later;
          push(queue, [&] { later.set_value(); });
          later.get_future().wait();
          ++served;
        }));
  }
  release.set_value();
  ASSERT_TRUE(waitUntil([&] { return served == kCallbacks; }, kPatience));
  queue.close();
  EXPECT_TRUE(queue.waitForThreads(kPatience));
}

// They push nothing: what they wait for stands behind them in the queue.
TEST(OpQueue, AnyNumberOfCallbacksMayWaitForAnOperationThatIsQueued) {
  constexpr std::size_t kCallbacks = 200;
  std::atomic<std::size_t> served{0};
  OpQueue queue;
  std::promise<void> release, last;
  auto held = release.get_future().share();
  auto ran = last.get_future().share();
  ASSERT_TRUE(push(queue, [held] { held.wait(); }));
  for (std::size_t i = 0; i < kCallbacks; ++i) {
    ASSERT_TRUE(push(
        queue, [] {},
        [&served, ran] {
          ran.wait();
          ++served;
        }));
  }
  ASSERT_TRUE(push(queue, [&] { last.set_value(); }));
  release.set_value();
  ASSERT_TRUE(waitUntil([&] { return served == kCallbacks; }, kPatience));
  queue.close();
  EXPECT_TRUE(queue.waitForThreads(kPatience));
}

TEST(OpQueue, ACallbackMayEndTheQueue) {
  OpQueue queue;
  std::promise<bool> ended;
  ASSERT_TRUE(push(
      queue, [] {},
      [&] {
        queue.close();
        ended.set_value(queue.waitForThreads(kPatience));
      }));
  auto done = ended.get_future();
  ASSERT_EQ(done.wait_for(kPatience / 2), std::future_status::ready);
  EXPECT_TRUE(done.get());
}

TEST(OpQueue, DrainGivesUpInTime) {
  OpQueue queue;
  std::promise<void> release;
  auto held = release.get_future().share();
  ASSERT_TRUE(push(queue, [held] { held.wait(); }));
  EXPECT_FALSE(queue.drain(milliseconds(20)));
  release.set_value();
  EXPECT_TRUE(queue.drain(kPatience));
}

TEST(OpQueue, WhatWaitsAtTheEndStillRunsAndNothingElse) {
  OpQueue queue;
  std::promise<void> release;
  auto held = release.get_future().share();
  std::atomic<int> ran{0};
  ASSERT_TRUE(push(queue, [&, held] {
    held.wait();
    ran.fetch_add(1);
  }));
  ASSERT_TRUE(push(queue, [&] { ran.fetch_add(1); }));
  queue.close();
  EXPECT_FALSE(push(queue, [&] { ran.fetch_add(100); }));
  EXPECT_FALSE(queue.tryEnter());
  EXPECT_FALSE(queue.waitForThreads(milliseconds(20)));
  release.set_value();
  EXPECT_TRUE(queue.waitForThreads(kPatience));
  EXPECT_EQ(ran.load(), 2);
}

TEST(OpQueue, MayEndBeforeItsThread) {
  std::promise<void> release, ended;
  auto held = release.get_future().share();
  {
    OpQueue queue;
    ASSERT_TRUE(push(queue, [&, held] {
      held.wait();
      ended.set_value();
    }));
  }
  release.set_value();
  EXPECT_EQ(ended.get_future().wait_for(kPatience), std::future_status::ready);
}

}  // namespace
}  // namespace weft::collectives
