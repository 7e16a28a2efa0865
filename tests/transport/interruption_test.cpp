// Ctrl-C ends a wait on the main thread, on no other, and no lock is held while the hook asks.
#include "transport/base/interruption.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace weft::transport {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)

std::atomic<bool> pressed{false};
std::atomic<int> asked{0};

class Interruption : public ::testing::Test {
 protected:
  void SetUp() override {
    pressed = false;
    asked = 0;
    setInterruptHook({[] {
                        ++asked;
                        return pressed.load();
                      },
                      [] {
                        if (pressed.exchange(false)) throw std::runtime_error("interrupted");
                      }});
  }
  void TearDown() override { setInterruptHook({}); }

  Waited waitFor(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    const Waited ended =
        waitInterruptibly(arrived_, lock, deadlineAfter(limit), [&] { return here_; });
    EXPECT_TRUE(lock.owns_lock());
    return ended;
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  bool here_ = false;
};

TEST_F(Interruption, EndsAWaitOfTheMainThread) {
  pressed = true;
  EXPECT_EQ(waitFor(20s), Waited::kInterrupted);
  EXPECT_EQ(asked, 1);  // it did not go on after the first look
  EXPECT_THROW(raiseInterrupt(), std::runtime_error);
  raiseInterrupt();  // once
}

TEST_F(Interruption, AsksNothingInAShortWait) {
  pressed = true;
  here_ = true;
  EXPECT_EQ(waitFor(20s), Waited::kDone);
  here_ = false;
  EXPECT_EQ(waitFor(5ms), Waited::kLate);
  EXPECT_EQ(asked, 0);
}

TEST_F(Interruption, LeavesOtherThreadsAlone) {
  pressed = true;
  std::thread([&] {
    EXPECT_EQ(waitFor(120ms), Waited::kLate);
    EXPECT_FALSE(interrupted());
    raiseInterrupt();
  }).join();
  EXPECT_EQ(asked, 0);
}

TEST_F(Interruption, TheHookMayTakeTheWaitsLock) {
  static std::mutex* lock = nullptr;
  lock = &mutex_;
  setInterruptHook({[] {
                      const std::lock_guard held(*lock);
                      return ++asked == 2;
                    },
                    [] {}});
  EXPECT_EQ(waitFor(20s), Waited::kInterrupted);
}

TEST_F(Interruption, WithoutAHookAWaitIsAWait) {
  setInterruptHook({});
  pressed = true;
  EXPECT_EQ(waitFor(60ms), Waited::kLate);
  EXPECT_FALSE(interrupted());
}

}  // namespace
}  // namespace weft::transport
