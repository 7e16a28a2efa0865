// Pool, counters and histogram: no torch header, and no task that is waited for without a bound.
#include "rpc_backend/threads/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "rpc_backend/core/metrics.h"

#include "tests/support/no_more_threads.h"
#include "tests/support/waiting.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)
using Clock = std::chrono::steady_clock;

constexpr auto kBound = 10s;

// Tasks that wait until they are let go.
class Gate {
 public:
  std::function<void()> task() {
    return [this, opened = opened_] {
      ++entered_;
      opened.wait_for(30s);
      ++left_;
    };
  }
  void open() { promise_.set_value(); }
  bool waitForEntered(int count) const {
    const auto end = Clock::now() + kBound;
    while (entered_ < count && Clock::now() < end)
      std::this_thread::yield();
    return entered_ >= count;
  }
  int left() const { return left_; }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_{promise_.get_future().share()};
  std::atomic<int> entered_{0};
  std::atomic<int> left_{0};
};

TEST(WorkerPool, StartsNoThreadBeforeThereIsWork) {
  const WorkerPool pool("test", 4, 8);
  EXPECT_EQ(pool.threads(), 0U);
  EXPECT_EQ(pool.maxThreads(), 8U);
  EXPECT_EQ(pool.idleThreads(), 8U);
}

TEST(WorkerPool, ThreadsThatWereNeededOnceLeave) {
  WorkerPool pool("test", 1, 40);
  for (int round = 0; round < 2; ++round) {
    Gate gate;
    for (int i = 0; i < 40; ++i)
      ASSERT_TRUE(pool.run(gate.task()));
    ASSERT_TRUE(gate.waitForEntered(40));
    EXPECT_EQ(pool.threads(), 41U);  // and the watcher
    gate.open();
    EXPECT_TRUE(waitUntil([&] { return pool.threads() == 2; }, kBound));
    EXPECT_EQ(gate.left(), 40);
  }
}

TEST(WorkerPool, OneThreadKeepsTheOrder) {
  WorkerPool pool("test", 1, 1);
  std::vector<int> seen;
  std::promise<void> done;
  for (int i = 0; i < 1000; ++i)
    ASSERT_TRUE(pool.run([&, i] { seen.push_back(i); }));
  ASSERT_TRUE(pool.run([&] { done.set_value(); }));
  ASSERT_EQ(done.get_future().wait_for(kBound), std::future_status::ready);
  ASSERT_EQ(seen.size(), 1000U);
  for (int i = 0; i < 1000; ++i)
    ASSERT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(WorkerPool, AHeldPoolBeginsWithItsRelease) {
  WorkerPool pool("test", 2, 2, {}, /*held=*/true);
  Gate gate;
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(pool.run(gate.task()));
  EXPECT_EQ(pool.threads(), 0U);
  pool.release();
  EXPECT_TRUE(gate.waitForEntered(2));
  gate.open();
  pool.stop(kBound, WorkerPool::Waiting::kRun);
}

// Tasks that block must not keep others from beginning, while there may be more threads: all given
// at once, and nothing given later that would give the pool another push.
TEST(WorkerPool, GrowsToItsLimitWhenTasksBlock) {
  for (const std::size_t ready : {1UL, 2UL, 4UL}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      WorkerPool pool("test", ready, 8);
      Gate gate;
      std::promise<void> warm;
      pool.run([&] { warm.set_value(); });
      warm.get_future().wait_for(kBound);
      for (int i = 0; i < 8; ++i)
        pool.run(gate.task());
      EXPECT_TRUE(gate.waitForEntered(8)) << "with " << ready << " threads ready";
      gate.open();
      pool.stop(kBound, WorkerPool::Waiting::kRun);
      ASSERT_EQ(gate.left(), 8);
    }
  }
}

TEST(WorkerPool, APreparedPoolHasAThreadAndKeepsWhatIsHeld) {
  WorkerPool pool("test", 2, 2, {}, /*held=*/true);
  ASSERT_FALSE(pool.prepare());
  ASSERT_FALSE(pool.prepare());
  EXPECT_EQ(pool.threads(), 1U);
  std::atomic<int> ran{0};
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(pool.run([&] { ++ran; }));
  timeForWhatMustNotHappen(20ms);
  EXPECT_EQ(ran, 0);
  pool.release();
  EXPECT_TRUE(waitUntil([&] { return ran == 3; }, kBound));
}

TEST(WorkerPool, SaysThatItHasNoThread) {
  WorkerPool pool("test", 1, 4);
  {
    const NoMoreThreads here;
    const auto error = pool.prepare();
    EXPECT_NE(error.text().find("no thread can be started here (EAGAIN)"), std::string::npos)
        << error.text();
  }
  EXPECT_FALSE(pool.prepare());
}

TEST(WorkerPool, GoesOnWithTheThreadsItHas) {
  for (const std::size_t ready : {1UL, 4UL}) {
    WorkerPool pool("test", ready, 4);
    ASSERT_FALSE(pool.prepare());
    Gate gate;
    {
      const NoMoreThreads here;
      std::promise<void> done;
      std::atomic<int> ran{0};
      for (int i = 0; i < 100; ++i)  // run() and take() find no other thread
        ASSERT_TRUE(pool.run([&] { ++ran; }));
      ASSERT_TRUE(pool.run([&] { done.set_value(); }));
      ASSERT_EQ(done.get_future().wait_for(kBound), std::future_status::ready);
      EXPECT_EQ(ran, 100);
      EXPECT_EQ(pool.threads(), 1U);
    }
    for (int i = 0; i < 4; ++i)  // it grows again
      pool.run(gate.task());
    EXPECT_TRUE(gate.waitForEntered(4)) << "with " << ready << " threads ready";
    gate.open();
    pool.stop(kBound, WorkerPool::Waiting::kRun);
    EXPECT_EQ(gate.left(), 4);
  }
}

// Nothing gives the pool another push: its watcher has to try again.
TEST(WorkerPool, TheWatcherGoesOnTryingToStartAThread) {
  WorkerPool pool("test", 1, 3);
  Gate first;
  pool.run(first.task());
  pool.run(first.task());  // started by the watcher, which is there from now on
  ASSERT_TRUE(first.waitForEntered(2));
  std::atomic<bool> ran{false};
  {
    const NoMoreThreads here;
    pool.run([&] { ran = true; });
    timeForWhatMustNotHappen(30ms);
    EXPECT_FALSE(ran);
  }
  EXPECT_TRUE(waitUntil([&] { return ran.load(); }, kBound));
  first.open();
  pool.stop(kBound);
}

TEST(WorkerPool, NeverExceedsItsLimit) {
  WorkerPool pool("test", 2, 3);
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  std::atomic<int> done{0};
  for (int i = 0; i < 300; ++i) {
    pool.run([&] {
      const int now = ++inside;
      int seen = most;
      while (seen < now && !most.compare_exchange_weak(seen, now)) {
      }
      takes(100us);
      --inside;
      ++done;
    });
  }
  pool.stop(kBound, WorkerPool::Waiting::kRun);
  EXPECT_EQ(done, 300);
  EXPECT_LE(most, 3);
}

TEST(WorkerPool, StopDropsOrRunsWhatHasNotBegun) {
  for (const auto waiting : {WorkerPool::Waiting::kDrop, WorkerPool::Waiting::kRun}) {
    WorkerPool pool("test", 1, 1);
    Gate gate;
    std::atomic<int> ran{0};
    pool.run(gate.task());
    ASSERT_TRUE(gate.waitForEntered(1));
    for (int i = 0; i < 5; ++i)
      pool.run([&] { ++ran; });
    std::thread stopper([&] { pool.stop(kBound, waiting); });
    // From then on nothing is taken in; that stop() has begun can be seen by that.
    const auto end = Clock::now() + kBound;
    while (pool.run([] {}) && Clock::now() < end)
      std::this_thread::yield();
    gate.open();
    stopper.join();
    EXPECT_EQ(gate.left(), 1);
    EXPECT_EQ(ran, waiting == WorkerPool::Waiting::kRun ? 5 : 0);
    EXPECT_FALSE(pool.run([] {}));
    pool.stop(0ms);  // again: nothing happens
  }
}

TEST(WorkerPool, ATaskThatNeverEndsIsLeftToItself) {
  auto gate = std::make_unique<Gate>();
  {
    WorkerPool pool("test", 1, 1);
    pool.run(gate->task());
    ASSERT_TRUE(gate->waitForEntered(1));
    const auto started = Clock::now();
    pool.stop(50ms);
    EXPECT_LT(Clock::now() - started, 5s);
    EXPECT_EQ(gate->left(), 0);
  }
  gate->open();  // the pool is gone; its thread ends well all the same
  const auto end = Clock::now() + kBound;
  while (gate->left() == 0 && Clock::now() < end)
    std::this_thread::yield();
  EXPECT_EQ(gate->left(), 1);
}

TEST(WorkerPool, ATaskThatThrowsHarmsNobody) {
  WorkerPool pool("test", 1, 1);
  std::promise<void> done;
  pool.run([] { throw std::runtime_error("a task's own"); });
  pool.run([&] { done.set_value(); });
  EXPECT_EQ(done.get_future().wait_for(kBound), std::future_status::ready);
}

TEST(WorkerPool, ManyThreadsGiveWorkAtOnce) {
  WorkerPool pool("test", 2, 16);
  std::atomic<int> ran{0};
  std::vector<std::thread> givers;
  for (int t = 0; t < 4; ++t) {
    givers.emplace_back([&] {
      for (int i = 0; i < 5000; ++i)
        pool.run([&] { ++ran; });
    });
  }
  for (auto& giver : givers)
    giver.join();
  pool.stop(kBound, WorkerPool::Waiting::kRun);
  EXPECT_EQ(ran, 20000);
}

// Threads that were needed once must not take turns ever after: each would be cold.
TEST(WorkerPool, OneAfterAnotherTasksStayOnOneThread) {
  WorkerPool pool("test", 4, 4);
  Gate gate;
  for (int i = 0; i < 4; ++i)
    pool.run(gate.task());
  ASSERT_TRUE(gate.waitForEntered(4));
  gate.open();
  const auto wait_for_idle = [&] {
    const auto end = Clock::now() + kBound;
    while (pool.idleThreads() != 4 && Clock::now() < end)
      std::this_thread::yield();
    return pool.idleThreads() == 4;
  };
  ASSERT_TRUE(wait_for_idle());
  std::set<std::thread::id> used;
  for (int i = 0; i < 200; ++i) {
    std::promise<std::thread::id> ran;
    pool.run([&] { ran.set_value(std::this_thread::get_id()); });
    auto thread = ran.get_future();
    ASSERT_EQ(thread.wait_for(kBound), std::future_status::ready);
    used.insert(thread.get());
    ASSERT_TRUE(wait_for_idle());
    if (i % 20 == 0) takes(2ms);  // long enough to fall asleep
  }
  pool.stop(kBound);
  EXPECT_EQ(used.size(), 1U);
}

TEST(WorkerPool, EachThreadRunsTheHooksFirstLastAndAfterEachTask) {
  static thread_local int here = 0;
  std::atomic<int> begun{0};
  std::atomic<int> after{0};
  std::atomic<int> ended{0};
  std::atomic<int> without{0};
  WorkerPool pool("test", 2, 8,
                  {[&] { here = ++begun; }, [&] { ++after; }, [&] { ended += here != 0 ? 1 : 0; }});
  EXPECT_EQ(begun, 0);
  Gate gate;
  for (int i = 0; i < 8; ++i)
    pool.run(gate.task());
  ASSERT_TRUE(gate.waitForEntered(8));
  for (int i = 0; i < 100; ++i)
    pool.run([&] { without += here == 0 ? 1 : 0; });
  gate.open();
  pool.stop(kBound, WorkerPool::Waiting::kRun);
  EXPECT_EQ(begun, 8);
  EXPECT_EQ(after, 108);
  EXPECT_EQ(ended, 8);
  EXPECT_EQ(without, 0);
}

// In place of an event loop: brings what it is given, on the thread that works for it.
class Bringer {
 public:
  IdleWork work() {
    return {[this](const std::function<bool()>& done, transport::AdaptiveSpin&) {
              std::unique_lock lock(mutex_);
              while (!done()) {
                ++waits_;
                if (!changed_.wait_for(lock, kBound, [&] { return rung_ || !brought_.empty(); }))
                  return false;
                rung_ = false;
                const auto brought = std::exchange(brought_, {});
                lock.unlock();
                for (const auto& task : brought)
                  task();
                if (woken_) woken_();
                lock.lock();
              }
              return true;
            },
            [this] {
              ++rings_;
              const std::lock_guard lock(mutex_);
              rung_ = true;
              changed_.notify_all();
            }};
  }
  void bring(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    brought_.push_back(std::move(task));
    changed_.notify_all();
  }
  // First: called where a thread has woken and not yet looked for work.
  void whenWoken(std::function<void()> call) { woken_ = std::move(call); }
  int rings() const { return rings_; }
  // How often a thread has found nothing and slept.
  int waits() const { return waits_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> brought_;
  std::function<void()> woken_;
  bool rung_ = false;
  std::atomic<int> rings_{0};
  std::atomic<int> waits_{0};
};

TEST(WorkerPool, TheThreadThatBringsATaskRunsIt) {
  Bringer bringer;
  WorkerPool pool("test", 2, 4);
  pool.addIdleWork(bringer.work());
  ASSERT_FALSE(pool.prepare());
  for (int i = 0; i < 100; ++i) {
    std::promise<bool> same;
    bringer.bring([&] {
      pool.run([&, here = std::this_thread::get_id()] {
        same.set_value(here == std::this_thread::get_id());
      });
    });
    auto ran = same.get_future();
    ASSERT_EQ(ran.wait_for(kBound), std::future_status::ready);
    EXPECT_TRUE(ran.get());
  }
  EXPECT_EQ(bringer.rings(), 0);
  pool.stop(kBound);
}

TEST(WorkerPool, WhileOneRunsWhatItBroughtAnotherBringsTheNext) {
  Bringer first;
  Bringer second;
  WorkerPool pool("test", 2, 4);
  pool.addIdleWork(first.work());
  pool.addIdleWork(second.work());
  Gate busy;
  pool.run(busy.task());  // starts the thread that stays for the second
  ASSERT_TRUE(busy.waitForEntered(1));
  pool.run([] {});
  ASSERT_TRUE(waitUntil([&] { return first.waits() == 1; }, kBound));
  busy.open();
  ASSERT_TRUE(waitUntil([&] { return second.waits() == 1; }, kBound));
  Gate stuck;
  first.bring([&] { pool.run(stuck.task()); });
  ASSERT_TRUE(stuck.waitForEntered(1));
  std::promise<bool> same;
  second.bring([&] {
    pool.run([&, here = std::this_thread::get_id()] {
      same.set_value(here == std::this_thread::get_id());
    });
  });
  auto ran = same.get_future();
  ASSERT_EQ(ran.wait_for(kBound), std::future_status::ready);
  EXPECT_TRUE(ran.get());
  EXPECT_EQ(first.rings() + second.rings(), 0);
  stuck.open();
  pool.stop(kBound);
}

TEST(WorkerPool, WhoBringsATaskForItselfRunsItAndNoOther) {
  Bringer bringer;
  WorkerPool pool("test", 2, 4);
  pool.addIdleWork(bringer.work());
  EXPECT_FALSE(pool.runNext([] {}));  // this thread brings nothing
  ASSERT_FALSE(pool.prepare());
  for (int i = 0; i < 100; ++i) {
    std::promise<bool> same;
    bringer.bring([&] {
      EXPECT_TRUE(pool.runNext([&, here = std::this_thread::get_id()] {
        same.set_value(here == std::this_thread::get_id());
      }));
      EXPECT_FALSE(pool.runNext([] {}));  // it has one
    });
    auto ran = same.get_future();
    ASSERT_EQ(ran.wait_for(kBound), std::future_status::ready);
    EXPECT_TRUE(ran.get());
  }
  pool.stop(kBound);
}

TEST(WorkerPool, TheLastThreadTakesNothingForItself) {
  Bringer bringer;
  WorkerPool pool("test", 1, 1);
  pool.addIdleWork(bringer.work());
  ASSERT_FALSE(pool.prepare());
  std::promise<bool> taken;
  bringer.bring([&] { taken.set_value(pool.runNext([] {})); });
  auto was_taken = taken.get_future();
  ASSERT_EQ(was_taken.wait_for(kBound), std::future_status::ready);
  EXPECT_FALSE(was_taken.get());
  pool.stop(kBound);
}

TEST(WorkerPool, WhatAThreadTookForItselfRunsAlsoAfterStop) {
  Bringer bringer;
  WorkerPool pool("test", 2, 4);
  pool.addIdleWork(bringer.work());
  ASSERT_FALSE(pool.prepare());
  Gate taken;
  std::atomic<bool> ran{false};
  bringer.bring([&] {
    EXPECT_TRUE(pool.runNext([&] { ran = true; }));
    taken.task()();
  });
  ASSERT_TRUE(taken.waitForEntered(1));
  std::thread stopping([&] { pool.stop(kBound); });
  taken.open();
  stopping.join();
  EXPECT_TRUE(ran);
}

class WorkerPoolIdle : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, WorkerPoolIdle, testing::Values(1, 2));

TEST_P(WorkerPoolIdle, TasksOfOthersEndIdleWork) {
  std::deque<Bringer> bringers(static_cast<std::size_t>(GetParam()));
  WorkerPool pool("test", 2, 4);
  for (Bringer& bringer : bringers)
    pool.addIdleWork(bringer.work());
  std::atomic<int> ran{0};
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(pool.run([&] { ++ran; }));
    if (i % 2 == 0) {
      const int all = i + 1;
      ASSERT_TRUE(waitUntil([&] { return ran == all; }, kBound));
    }
  }
  EXPECT_TRUE(waitUntil([&] { return ran == 500; }, kBound));
  pool.stop(kBound);
}

TEST(WorkerPool, IdleWorkIsEndedAgainAfterAnotherThreadTookTheTask) {
  Bringer bringer;
  Gate woken;
  bringer.whenWoken(woken.task());
  WorkerPool pool("test", 2, 2);
  pool.addIdleWork(bringer.work());
  Gate first;
  Gate second;
  pool.run(first.task());  // the first thread is busy
  ASSERT_TRUE(first.waitForEntered(1));
  pool.run([] {});  // the second comes, and then looks for work
  ASSERT_TRUE(waitUntil([&] { return bringer.waits() == 1; }, kBound));
  pool.run(second.task());  // wakes the second, but the first thread takes it
  ASSERT_TRUE(woken.waitForEntered(1));
  first.open();
  ASSERT_TRUE(second.waitForEntered(1));
  woken.open();
  ASSERT_TRUE(waitUntil([&] { return bringer.waits() == 2; }, kBound));
  pool.run([] {});
  EXPECT_EQ(bringer.rings(), 2);
  second.open();
  pool.stop(kBound);
}

TEST(ActiveCount, CanBeWaitedFor) {
  ActiveCount count;
  EXPECT_TRUE(count.waitForZero(0ms));
  count.increment();
  count.increment();
  EXPECT_FALSE(count.waitForZero(10ms));
  std::thread other([&] {
    count.decrement();
    count.decrement();
  });
  EXPECT_TRUE(count.waitForZero(kBound));
  other.join();
  EXPECT_EQ(count.value(), 0);
}

TEST(DurationHistogram, QuantilesAreWithinAFifth) {
  DurationHistogram histogram;
  EXPECT_EQ(histogram.quantileMicroseconds(0.5), 0);
  for (int us = 1; us <= 10000; ++us)
    histogram.add(std::chrono::microseconds(us));
  EXPECT_EQ(histogram.count(), 10000U);
  for (const double q : {0.1, 0.5, 0.9, 0.99})
    EXPECT_NEAR(histogram.quantileMicroseconds(q), q * 10000, q * 10000 * 0.19) << q;
}

TEST(DurationHistogram, CountsWhatLiesBelowEachBound) {
  DurationHistogram first, all;
  const auto bounds = DurationHistogram::boundsInSeconds();
  ASSERT_EQ(first.cumulative().size(), bounds.size() + 1);
  EXPECT_DOUBLE_EQ(bounds[1], 4096e-9);
  for (const auto duration : {1000ns, 1100ns, 5000ns, std::chrono::nanoseconds(1h)})
    first.add(duration);
  all.add(1ns);
  all.addAll(first);
  const auto below = all.cumulative();
  EXPECT_EQ(below[0], 2U);  // below 1024 ns
  EXPECT_EQ(below[1], 3U);
  EXPECT_EQ(below[2], 4U);
  EXPECT_EQ(below[bounds.size() - 1], 4U);
  EXPECT_EQ(below.back(), 5U);
  EXPECT_EQ(all.total(), 7101ns + 1h);
}

TEST(DurationHistogram, TakesEveryDuration) {
  DurationHistogram histogram;
  for (const auto duration : {-5ns, 0ns, 1ns, std::chrono::nanoseconds(1000h)})
    histogram.add(duration);
  EXPECT_EQ(histogram.count(), 4U);
  EXPECT_GT(histogram.quantileMicroseconds(1.0), 1e8);
}

}  // namespace
}  // namespace weft::rpc
