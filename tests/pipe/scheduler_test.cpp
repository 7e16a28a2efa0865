// The scheduler alone: order, failures, threads. Under ThreadSanitizer these are the tests that
// count.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "pipe/schedule/clock.h"
#include "pipe/schedule/effort.h"
#include "pipe/schedule/pace.h"
#include "pipe/schedule/stage_executor.h"
#include "pipe/schedule/task_order.h"
#include "pipe/schedule/timeline.h"

#include "tests/support/waiting.h"

namespace weft::pipe {
namespace {

class Function final : public Job {
 public:
  explicit Function(std::function<void(TaskId)> function) : function_(std::move(function)) {}
  void run(TaskId task) override { function_(task); }

 private:
  std::function<void(TaskId)> function_;
};

// A pipeline's forward: a worker per stage.
struct Grid {
  Grid(std::size_t m, std::size_t n) : order(clockOrder(m, n)), graph(n) {
    std::vector<TaskId> last(m);
    for (const CellIndex cell : order) {
      const TaskId task = graph.add(cell.stage);
      if (cell.stage != 0) graph.require(task, last[cell.micro_batch]);
      last[cell.micro_batch] = task;
    }
  }
  std::vector<CellIndex> order;
  TaskGraph graph;
};

TEST(ClockOrder, IsThePapers) {
  const std::vector<CellIndex> expected{{0, 0}, {1, 0}, {0, 1}, {2, 0}, {1, 1},
                                        {0, 2}, {2, 1}, {1, 2}, {2, 2}};
  EXPECT_EQ(clockOrder(3, 3), expected);
  EXPECT_EQ(clockOrder(1, 4).size(), 4U);
  EXPECT_EQ(clockOrder(5, 2).size(), 10U);
}

TEST(StageExecutor, RunsEachTaskOnceAfterWhatItNeeds) {
  for (const Running running : {Running::kInline, Running::kThreads}) {
    StageExecutor executor("test-", 3, {});
    for (int round = 0; round < 200; ++round) {
      const Grid grid(5, 3);
      std::vector<int> progress(5, 0);  // not atomic: the graph alone orders the accesses
      std::vector<int> worker(3, 0);
      Function job([&](TaskId task) {
        const auto [i, j] = grid.order[task];
        ASSERT_EQ(progress[i], static_cast<int>(j));
        ASSERT_EQ(worker[j], static_cast<int>(i));
        ++progress[i];
        ++worker[j];
      });
      executor.run(grid.graph, job, running);
      EXPECT_EQ(progress, std::vector<int>(5, 3));
    }
    EXPECT_EQ(executor.threads(), running == Running::kThreads ? 3U : 0U);
    executor.stop();
    EXPECT_EQ(executor.threads(), 0U);
  }
}

TEST(StageExecutor, ThrowsTheEarliestFailureAndLeavesOutWhatFollows) {
  StageExecutor executor("test-", 2, {});
  const Grid grid(4, 2);  // (0,0) (1,0) (0,1) (2,0) (1,1) …
  std::atomic<bool> second_failed{false};
  std::atomic<int> later{0};
  Function job([&](TaskId task) {
    if (task == 1) {
      while (!second_failed)
        std::this_thread::yield();
      throw std::runtime_error("first");
    }
    if (task == 2) {
      second_failed = true;
      throw std::runtime_error("second");
    }
    if (task > 2) ++later;
  });
  try {
    executor.run(grid.graph, job, Running::kThreads);
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_EQ(later, 0);
  Function good([](TaskId) {});
  executor.run(grid.graph, good, Running::kThreads);
}

TEST(StageExecutor, CanBeInterrupted) {
  ThreadHooks hooks;
  std::atomic<bool> stop{false};
  hooks.interrupted = [&] {
    stop = true;
    throw std::logic_error("interrupted");
  };
  StageExecutor executor("test-", 2, hooks);
  const Grid grid(200, 2);
  std::atomic<int> ran{0};
  Function job([&](TaskId) {
    ++ran;
    while (!stop)
      std::this_thread::yield();
    // From `stop` to the throw: all may have been done before, were they short.
    takes(std::chrono::milliseconds(1));
  });
  EXPECT_THROW(executor.run(grid.graph, job, Running::kThreads), std::logic_error);
  EXPECT_LT(ran, 400);
}

TEST(StageExecutor, TakesJobsOfSeveralThreads) {
  StageExecutor executor("test-", 3, {});
  std::vector<std::thread> callers;
  std::atomic<int> done{0};
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        const Grid grid(3, 3);
        int count = 0;
        std::vector<int> counts(3, 0);
        Function job([&](TaskId task) { ++counts[grid.order[task].stage]; });
        executor.run(grid.graph, job, Running::kThreads);
        for (const int worker : counts)
          count += worker;
        EXPECT_EQ(count, 9);
        ++done;
      }
    });
  }
  for (std::thread& caller : callers)
    caller.join();
  EXPECT_EQ(done, 200);
  EXPECT_EQ(executor.threads(), 3U);
}

TEST(StageExecutor, RunsInlineFromItsOwnThreads) {
  StageExecutor executor("test-", 2, {});
  const Grid outer(2, 2);
  const Grid inner(2, 2);
  std::atomic<int> ran{0};
  Function nested([&](TaskId) { ++ran; });
  Function job([&](TaskId) { executor.run(inner.graph, nested, Running::kThreads); });
  executor.run(outer.graph, job, Running::kThreads);
  EXPECT_EQ(ran, 16);
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow a fork with threads
TEST(StageExecutor, StartsAnewInAForkedChild) {
  StageExecutor executor("test-", 2, {});
  const Grid grid(2, 2);
  std::atomic<int> ran{0};
  Function job([&](TaskId) { ++ran; });
  executor.run(grid.graph, job, Running::kThreads);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    executor.run(grid.graph, job, Running::kThreads);
    const bool good = ran == 8 && executor.threads() == 2;
    executor.stop();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

// Runs mini-batches of a stage that takes `in_line` seconds per task, or `threads` on threads.
// Those that are not measured are shown to take `clock` times as long.
struct Runs {
  int threads = 0;
  int measured = 0;
};
Runs runAtPace(Pace& pace, int rounds, double in_line, double threads, double at_best,
               double clock = 1) {
  Runs runs;
  for (int round = 0; round < rounds; ++round) {
    const auto [running, measured] = pace.choose();
    runs.threads += running == Running::kThreads ? 1 : 0;
    runs.measured += measured ? 1 : 0;
    if (!measured) {
      pace.report(running, clock * (running == Running::kThreads ? threads : in_line));
    } else if (running == Running::kThreads) {
      pace.reportThreads(threads);
    } else {
      pace.reportInLine(in_line, at_best);
    }
  }
  return runs;
}

TEST(Pace, KeepsTheFasterWayAndTriesTheOther) {
  for (const bool threads_win : {true, false}) {
    Pace pace;
    const Runs runs = runAtPace(pace, 1000, 1e-3, threads_win ? 0.7e-3 : 1e-3, 0.5e-3);
    EXPECT_GT(threads_win ? runs.threads : 1000 - runs.threads, 970);
    EXPECT_LT(threads_win ? runs.threads : 1000 - runs.threads, 1000);
    EXPECT_LT(runs.measured, 40);
  }
}

TEST(Pace, LeavesAloneWhatThreadsCannotHelp) {
  Pace pace;
  const Runs runs = runAtPace(pace, 1000, 5e-6, 0, 6e-6);
  EXPECT_EQ(runs.threads, 0);
  EXPECT_LT(runs.measured, 20);
}

TEST(Pace, ABusyClockIsNoReasonToTryAllTheTime) {
  Pace pace;
  const Runs runs = runAtPace(pace, 1000, 1e-3, 1e-3, 0.5e-3, 50);
  EXPECT_LT(runs.measured, 60);
  EXPECT_GT(1000 - runs.threads, 970);
}

TEST(Pace, CorrectsABadJudgementSoon) {
  Pace pace;
  (void)runAtPace(pace, 9, 1e-3, 3e-3, 0.5e-3);  // something went wrong while it was tried
  const Runs runs = runAtPace(pace, 100, 1e-3, 0.6e-3, 0.5e-3);
  EXPECT_GT(runs.threads, 80);
}

TEST(Pace, KeepsThreadsUntilTheyCostMoreThanNone) {
  Pace pace;
  (void)runAtPace(pace, 50, 1e-3, 0.75e-3, 0.5e-3);
  EXPECT_GT(runAtPace(pace, 300, 1e-3, 0.95e-3, 0.5e-3).threads, 280);
  (void)runAtPace(pace, 200, 1e-3, 1.1e-3, 0.5e-3);
  EXPECT_LT(runAtPace(pace, 100, 1e-3, 1.1e-3, 0.5e-3).threads, 20);
}

TEST(Pace, JudgesAgainWhenTasksGetLonger) {
  Pace pace;
  (void)runAtPace(pace, 500, 5e-6, 6e-6, 6e-6);
  const Runs runs = runAtPace(pace, 100, 1e-3, 0.6e-3, 0.5e-3);
  EXPECT_GT(runs.threads, 80);
}

TEST(Effort, IsTheTimeOfTheStagesInTheirOrder) {
  const Grid grid(4, 2);
  const std::vector<double> efforts(8, 1.0);
  EXPECT_DOUBLE_EQ(inLine(efforts), 8);
  EXPECT_NEAR(onThreads(grid.graph, efforts), 5, 0.01);  // m + n - 1
  const Grid one(1, 2);
  EXPECT_GT(onThreads(one.graph, {1, 1}), 2);  // nothing overlaps, and threads are handed to
}

// One core for all: the clock sees the others, the effort does not.
TEST(Effort, LeavesOutWhatOthersTookOfTheCore) {
  if (!ThreadStopwatch().counts()) GTEST_SKIP() << "the kernel does not count";
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  const auto spin = [](std::int64_t ticks) {
    timespec now{};
    const auto used = [&] {
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
    };
    const auto end = used() + ticks;
    while (used() < end) {
    }
  };
  std::thread measured([&] {
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    ASSERT_EQ(sched_setaffinity(0, sizeof here, &here), 0);
    for (int i = 0; i < 4; ++i) {  // on the same core
      others.emplace_back([&] {
        while (!stop)
          spin(1'000'000);
      });
    }
    const Grid grid(4, 1);
    std::int64_t waited_ns = 0;
    Function job([&](TaskId) {
      const ThreadStopwatch watch;
      const std::int64_t before = watch.now().denied_ns;
      spin(20'000'000);
      waited_ns += watch.now().denied_ns - before;
    });
    MeasuredJob trial(job, grid.graph);
    const std::int64_t begin = monotonicNanos();
    StageExecutor("test-", 1, {}).run(grid.graph, trial, Running::kInline);
    const double clock = static_cast<double>(monotonicNanos() - begin) * 1e-9;
    stop = true;
    EXPECT_GT(waited_ns, 0);
    EXPECT_GE(inLine(trial.efforts()), 0.08);  // the spinning itself
    EXPECT_LE(inLine(trial.efforts()), clock - static_cast<double>(waited_ns) * 0.9e-9);
  });
  measured.join();
  for (std::thread& other : others)
    other.join();
}

TEST(Effort, CountsWaiting) {
  const Grid grid(1, 2);
  Function job([](TaskId) { takes(std::chrono::milliseconds(5)); });
  for (const Running running : {Running::kInline, Running::kThreads}) {
    MeasuredJob trial(job, grid.graph);
    StageExecutor("test-", 2, {}).run(grid.graph, trial, running);
    for (const double effort : trial.efforts())
      EXPECT_GE(effort, 4.9e-3);
  }
}

// Tasks that take their turn do so one at a time and in the schedule's order, whatever threads run
// them, and also after one has failed.
TEST(TaskOrder, TurnsComeInTheSchedulesOrder) {
  class Turns final : public Job {
   public:
    Turns(std::size_t tasks, TaskId failing) : order_(tasks), failing_(failing) {}
    void run(TaskId task) override {
      if (task % 3 != 0) order_.awaitTurnOf(task);
      if (task % 3 != 0) taken.push_back(task);  // nobody else has the turn
      order_.end(task);
      if (task == failing_) throw std::runtime_error("here");
    }
    void leaveOut(TaskId task) override { order_.end(task); }
    std::vector<TaskId> taken;

   private:
    TaskOrder order_;
    const TaskId failing_;
  };
  StageExecutor executor("test-", 4, {});
  const Grid grid(6, 4);
  for (int round = 0; round < 200; ++round) {
    const TaskId failing = round % 2 == 0 ? 13 : 1000;
    Turns job(grid.graph.size(), failing);
    if (failing < grid.graph.size()) {
      EXPECT_THROW(executor.run(grid.graph, job, Running::kThreads), std::runtime_error);
    } else {
      executor.run(grid.graph, job, Running::kThreads);
      EXPECT_EQ(job.taken.size(), grid.graph.size() * 2 / 3);
    }
    EXPECT_TRUE(std::is_sorted(job.taken.begin(), job.taken.end()));
  }
}

TEST(TaskOrder, SaysWhenATurnDoesNotCome) {
  TaskOrder order(3);
  order.end(1);
  EXPECT_TRUE(order.isTurnOf(0));
  EXPECT_FALSE(order.awaitTurnOf(2, std::chrono::seconds(0)));
  order.end(0);
  EXPECT_TRUE(order.awaitTurnOf(2, std::chrono::seconds(0)));
}

TEST(Timeline, RecordsOnlyWhileItIsOn) {
  Timeline timeline;
  { const Timeline::Span span(timeline, 0, 0, EventKind::kForward, 0); }
  timeline.start();
  { const Timeline::Span span(timeline, 2, 3, EventKind::kBackward, 1); }
  const std::vector<Event> events = timeline.stop();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].stage, 2U);
  EXPECT_EQ(events[0].micro_batch, 3U);
  EXPECT_LE(events[0].begin_ns, events[0].end_ns);
}

}  // namespace
}  // namespace weft::pipe
