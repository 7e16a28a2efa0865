#include "transport/io/event_loop.h"

#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/transport/recorder.h"
#include "transport/base/os/unique_fd.h"
#include "transport/io/poll.h"
#include "transport/io/timer.h"

#include "tests/support/waiting.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<EventLoop> newLoop() { return std::move(EventLoop::create("test-loop")).value(); }

// Runs on the loop thread and waits for it.
void onLoop(EventLoop& loop, const std::function<void()>& task) {
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> finished = done->get_future();
  ASSERT_TRUE(loop.post([&task, done] {
    task();
    done->set_value();
  }));
  ASSERT_EQ(finished.wait_for(kPatience), std::future_status::ready);
}

TEST(EventLoop, RunsPostedTasksInOrderOnItsThread) {
  const auto loop = newLoop();
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) {
    loop->post([&, i] {
      EXPECT_TRUE(loop->inLoop());
      order.push_back(i);
    });
  }
  onLoop(*loop, [] {});
  EXPECT_FALSE(loop->inLoop());
  ASSERT_EQ(order.size(), 1000U);
  for (int i = 0; i < 1000; ++i)
    EXPECT_EQ(order[i], i);
}

TEST(EventLoop, LosesNothingThatManyThreadsPost) {
  const auto loop = newLoop();
  constexpr int kThreads = 4;
  constexpr int kEach = 5000;
  int ran = 0;  // loop thread only
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i)
        loop->post([&] { ++ran; });
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  onLoop(*loop, [&] { EXPECT_EQ(ran, kThreads * kEach); });
}

TEST(EventLoop, ATaskMayPost) {
  const auto loop = newLoop();
  std::promise<void> second;
  loop->post([&] { loop->post([&] { second.set_value(); }); });
  EXPECT_EQ(second.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST(EventLoop, RunsDelayedTasksInTheirOrder) {
  const auto loop = newLoop();
  std::vector<int> order;
  std::promise<void> last;
  onLoop(*loop, [&] {
    loop->runAfter(milliseconds(60), [&] {
      order.push_back(2);
      last.set_value();
    });
    loop->runAfter(milliseconds(5), [&] { order.push_back(1); });
  });
  ASSERT_EQ(last.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(EventLoop, StopDropsWhatIsDelayedAndRefusesMore) {
  auto loop = newLoop();
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owned;
  onLoop(*loop, [&, held = std::move(owned)]() mutable {
    loop->runAfter(std::chrono::hours(1), [held = std::move(held)] { ADD_FAILURE() << *held; });
  });
  loop->stop();
  loop->stop();
  EXPECT_TRUE(watch.expired());
  EXPECT_FALSE(loop->post([] { ADD_FAILURE(); }));
}

// Waits for the third tick of a timer, whose callback ends the timer then, and runs `after` in
// each.
void tickThreeTimes(EventLoop& loop, const std::function<void(int)>& after) {
  int ticks = 0;
  std::promise<void> third;
  std::unique_ptr<Timer> timer;
  onLoop(loop, [&] {
    timer = std::make_unique<Timer>(loop, [&] {
      if (++ticks == 3) {
        timer.reset();
        third.set_value();
      }
      after(ticks);
    });
    timer->start(milliseconds(1), milliseconds(1));
  });
  ASSERT_EQ(third.get_future().wait_for(kPatience), std::future_status::ready);
  onLoop(loop, [] {});  // the callback has returned
}

TEST(EventLoop, ATimerRepeatsAndMayEndItselfInItsCallback) {
  tickThreeTimes(*newLoop(), [](int) {});
}

TEST(EventLoop, APollTellsReadinessAndMayEndItselfInItsCallback) {
  const auto loop = newLoop();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const UniqueFd near(ends[0]);
  const UniqueFd far(ends[1]);
  std::promise<void> seen;
  std::unique_ptr<Poll> poll;
  onLoop(*loop, [&] {
    poll = std::make_unique<Poll>(*loop, near.get(), [&](Poll::Ready ready) {
      EXPECT_TRUE(ready.readable);
      EXPECT_FALSE(ready.writable);
      poll.reset();
      seen.set_value();
    });
    poll->want(true, false);
  });
  ASSERT_EQ(::write(far.get(), "x", 1), 1);
  EXPECT_EQ(seen.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST(EventLoop, GoesOnAfterATaskThatThrows) {
  const auto loop = newLoop();
  std::atomic<int> after{0};
  loop->post([] { throw std::runtime_error("a task's own"); });
  loop->post([&] { ++after; });
  loop->post([] { throw 1; });  // NOLINT(hicpp-exception-baseclass): no std::exception
  std::promise<void> delayed;
  onLoop(*loop, [&] {
    loop->runAfter(milliseconds(1), [] { throw std::bad_alloc(); });
    loop->runAfter(milliseconds(5), [&] { delayed.set_value(); });
  });
  EXPECT_EQ(after, 1);
  EXPECT_EQ(delayed.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST(EventLoop, ATimerThatThrowsStillRepeats) {
  tickThreeTimes(*newLoop(), [](int tick) {
    throw std::runtime_error("tick " + std::to_string(tick));  // also when the timer is gone
  });
}

// The descriptor stays readable: without an end to it the loop would do nothing else.
TEST(EventLoop, APollThatThrowsIsNotWantedAnyMore) {
  const auto loop = newLoop();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const UniqueFd near(ends[0]);
  const UniqueFd far(ends[1]);
  std::atomic<int> called{0};
  std::promise<void> again;
  std::unique_ptr<Poll> poll;
  onLoop(*loop, [&] {
    poll = std::make_unique<Poll>(*loop, near.get(), [&](Poll::Ready) {
      if (++called == 2) {
        poll.reset();
        again.set_value();
      }
      throw std::runtime_error("a poll's own");
    });
    poll->want(true, false);
  });
  ASSERT_EQ(::write(far.get(), "x", 1), 1);
  ASSERT_TRUE(eventually([&] { return called == 1; }));
  timeForWhatMustNotHappen(milliseconds(30));
  EXPECT_EQ(called, 1);
  onLoop(*loop, [&] { poll->want(true, false); });
  EXPECT_EQ(again.get_future().wait_for(kPatience), std::future_status::ready);
  onLoop(*loop, [] {});
}

TEST(EventLoop, APollThatCannotBeginTellsTheErrorOnceItIsWanted) {
  const auto loop = newLoop();
  std::promise<int> told;
  std::unique_ptr<Poll> poll;
  onLoop(*loop, [&] {
    const int closed = 999'999;  // above any limit on descriptors that tests run under
    poll = std::make_unique<Poll>(*loop, closed, [&](Poll::Ready ready) {
      EXPECT_FALSE(ready.readable || ready.writable);
      poll.reset();
      told.set_value(ready.error);
    });
    poll->want(true, false);
  });
  auto error = told.get_future();
  ASSERT_EQ(error.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(error.get(), EBADF);
  onLoop(*loop, [&] {
    poll = std::make_unique<Poll>(*loop, 999'999, [](Poll::Ready) {});
    poll.reset();
  });
}

TEST(EventLoopDeathTest, HandlesBelongToTheLoopThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto loop = newLoop();
        loop->runAfter(milliseconds(1), [] {});
      },
      "belongs to the loop thread");
}

}  // namespace
}  // namespace weft::transport
