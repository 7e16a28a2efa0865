// Threads that run an event loop while they wait for what it brings.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "tests/transport/recorder.h"
#include "transport/base/os/unique_fd.h"
#include "transport/io/event_loop.h"
#include "transport/io/poll.h"
#include "transport/io/timer.h"

#include "tests/support/waiting.h"

namespace weft::transport {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<EventLoop> newLoop() { return std::move(EventLoop::create("test-loop")).value(); }

Driven driveUntil(EventLoop& loop, const std::function<bool()>& done, Driver kind = Driver::kCaller,
                  Deadline deadline = Deadline::max()) {
  AdaptiveSpin spin;
  return loop.drive(kind, done, deadline, spin);
}

void wakeAll(EventLoop& loop) {
  for (const Driver kind : {Driver::kCaller, Driver::kServer, Driver::kNextServer})
    loop.wakeDriver(kind);
}

// Two connected sockets, one of which a Poll of the loop echoes to.
class Echo {
 public:
  explicit Echo(EventLoop& loop) : loop_(loop) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    near_ = UniqueFd(ends[0]);
    far_ = UniqueFd(ends[1]);
    std::promise<void> made;
    loop.post([&] {
      poll_ = std::make_unique<Poll>(loop, near_.get(), [this](Poll::Ready) {
        char byte = 0;
        EXPECT_EQ(::read(near_.get(), &byte, 1), 1);
        read_by_ = std::this_thread::get_id();
        ++count_;
        wakeAll(loop_);
      });
      poll_->want(true, false);
      made.set_value();
    });
    made.get_future().wait();
  }
  ~Echo() {
    std::promise<void> gone;
    loop_.post([&] {
      poll_.reset();
      gone.set_value();
    });
    gone.get_future().wait();
  }
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;

  void write() { EXPECT_EQ(::write(far_.get(), "x", 1), 1); }
  int count() const { return count_; }
  std::thread::id readBy() const { return read_by_; }

 private:
  EventLoop& loop_;
  UniqueFd near_;
  UniqueFd far_;
  std::unique_ptr<Poll> poll_;
  std::atomic<int> count_{0};
  std::atomic<std::thread::id> read_by_{};
};

// Mostly for lack of memory. Nobody waits for it then, neither another driver nor stop().
TEST(EventLoopDrivers, OneThatThrowsLeaves) {
  const auto loop = newLoop();
  Echo echo(*loop);
  const auto throwing = [&] {
    if (echo.count() > 0) throw std::bad_alloc();
    return false;
  };
  std::thread later([&] { echo.write(); });
  EXPECT_THROW(driveUntil(*loop, throwing), std::bad_alloc);
  later.join();
  EXPECT_THROW(driveUntil(*loop, throwing), std::bad_alloc);
  echo.write();  // the loop's own thread reads it
  EXPECT_TRUE(eventually([&] { return echo.count() == 2; }));
  EXPECT_EQ(driveUntil(*loop, [] { return true; }), Driven::kDone);
  loop->post([&] { echo.write(); });
  EXPECT_EQ(driveUntil(*loop, [&] { return echo.count() == 3; }), Driven::kDone);
}

// A thread that writes when the driver sleeps in the gate: the driver reads it itself.
TEST(EventLoopDrivers, TheOneThatWaitsReadsItself) {
  const auto loop = newLoop();
  Echo echo(*loop);
  int own = 0;
  constexpr int kTimes = 200;
  for (int i = 0; i < kTimes; ++i) {
    std::thread writer([&] {
      letOthersBlock(milliseconds(1));
      echo.write();
    });
    EXPECT_EQ(driveUntil(*loop, [&] { return echo.count() > i; }), Driven::kDone);
    if (echo.readBy() == std::this_thread::get_id()) ++own;
    writer.join();
  }
  // The loop's own thread may have come first now and then.
  EXPECT_GT(own, kTimes / 2);
}

TEST(EventLoopDrivers, TheLoopGoesOnWithoutThem) {
  const auto loop = newLoop();
  Echo echo(*loop);
  for (int i = 0; i < 50; ++i) {
    echo.write();
    EXPECT_EQ(driveUntil(*loop, [&] { return echo.count() > 2 * i; }), Driven::kDone);
    echo.write();
    ASSERT_TRUE(eventually([&] { return echo.count() > 2 * i + 1; }));
  }
}

TEST(EventLoopDrivers, AreTheLoopThreadMeanwhile) {
  const auto loop = newLoop();
  std::atomic<bool> ran{false};
  std::thread other([&] {
    loop->post([&] {
      EXPECT_TRUE(loop->inLoop());
      ran = true;
      wakeAll(*loop);
    });
  });
  EXPECT_EQ(driveUntil(*loop, [&] { return ran.load(); }), Driven::kDone);
  EXPECT_FALSE(loop->inLoop());
  other.join();
}

TEST(EventLoopDrivers, TimersRunOnThemAndAfterThem) {
  const auto loop = newLoop();
  std::atomic<int> ticks{0};
  std::unique_ptr<Timer> timer;
  loop->post([&] {
    timer = std::make_unique<Timer>(*loop, [&] {
      ++ticks;
      wakeAll(*loop);
    });
    timer->start(milliseconds(5), milliseconds(5));
  });
  EXPECT_EQ(driveUntil(*loop, [&] { return ticks >= 5; }), Driven::kDone);
  const int before = ticks;
  ASSERT_TRUE(eventually([&] { return ticks > before + 5; }));
  std::promise<void> gone;
  loop->post([&] {
    timer.reset();
    gone.set_value();
  });
  gone.get_future().wait();
}

// The driver makes a timer that is due before the loop's own thread wakes up, and leaves.
TEST(EventLoopDrivers, ATimerThatALeavingOneMadeIsNotForgotten) {
  const auto loop = newLoop();
  for (int i = 0; i < 50; ++i) {
    std::promise<void> rang;
    std::atomic<bool> made{false};
    std::thread poster([&] {
      letOthersBlock(milliseconds(1));
      loop->post([&] {
        loop->runAfter(milliseconds(2), [&] { rang.set_value(); });
        made = true;
        wakeAll(*loop);
      });
    });
    EXPECT_EQ(driveUntil(*loop, [&] { return made.load(); }), Driven::kDone);
    ASSERT_EQ(rang.get_future().wait_for(kPatience), std::future_status::ready);
    poster.join();
  }
}

TEST(EventLoopDrivers, WakeUpForWhatOthersHaveDone) {
  const auto loop = newLoop();
  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> done{false};
    std::thread other([&] {
      done = true;
      wakeAll(*loop);
    });
    EXPECT_EQ(driveUntil(*loop, [&] { return done.load(); }), Driven::kDone);
    other.join();
  }
}

TEST(EventLoopDrivers, LeaveAtTheirDeadline) {
  const auto loop = newLoop();
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(driveUntil(
                *loop, [] { return false; }, Driver::kCaller, before + milliseconds(20)),
            Driven::kLate);
  EXPECT_GE(std::chrono::steady_clock::now() - before, milliseconds(20));
}

TEST(EventLoopDrivers, OneOfEachKindAtATimeAndNoneAfterStop) {
  const auto loop = newLoop();
  std::promise<void> inside;
  std::thread first([&] {
    bool told = false;
    const Driven how = driveUntil(*loop, [&] {
      if (!std::exchange(told, true)) inside.set_value();
      return false;
    });
    EXPECT_EQ(how, Driven::kStopped);
  });
  inside.get_future().wait();
  EXPECT_EQ(driveUntil(*loop, [] { return false; }), Driven::kTaken);
  EXPECT_EQ(driveUntil(
                *loop, [] { return true; }, Driver::kServer),
            Driven::kDone);
  loop->stop();
  first.join();
  EXPECT_EQ(driveUntil(*loop, [] { return false; }), Driven::kStopped);
}

// Callers and servers come and go while bytes, tasks and timers arrive: nothing is lost.
TEST(EventLoopDrivers, ComeAndGoUnderLoad) {
  const auto loop = newLoop();
  Echo echo(*loop);
  std::atomic<int> tasks{0};
  std::atomic<int> timers{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> drivers;
  for (std::size_t t = 0; t < 2 * kDrivers; ++t) {
    drivers.emplace_back([&, kind = static_cast<Driver>(t % kDrivers)] {
      AdaptiveSpin spin;
      while (!stop) {
        const int seen = echo.count();
        loop->drive(
            kind, [&] { return stop || echo.count() > seen; }, Deadline::max(), spin);
      }
    });
  }
  constexpr int kRounds = 2000;
  for (int i = 0; i < kRounds; ++i) {
    echo.write();
    loop->post([&] {
      ++tasks;
      loop->runAfter(milliseconds(1), [&] { ++timers; });
    });
    if (i % 3 == 0) {
      const int now = i;
      ASSERT_TRUE(eventually([&] { return echo.count() > now && tasks > now; })) << "round " << i;
    }
  }
  EXPECT_TRUE(
      eventually([&] { return echo.count() == kRounds && tasks == kRounds && timers == kRounds; }));
  stop = true;
  wakeAll(*loop);
  for (std::thread& driver : drivers)
    driver.join();
}

}  // namespace
}  // namespace weft::transport
