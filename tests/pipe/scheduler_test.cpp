// The scheduler alone: order, failures, threads. Under ThreadSanitizer these are the tests that
// count.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "pipe/schedule/schedule.h"
#include "pipe/schedule/stage_executor.h"
#include "pipe/schedule/task_order.h"
#include "pipe/schedule/thread_policy.h"
#include "pipe/schedule/timeline.h"

#include "tests/support/no_more_threads.h"
#include "tests/support/waiting.h"
#include "transport/base/interruption.h"

namespace weft::pipe {
namespace {

class Function final : public Job {
 public:
  explicit Function(std::function<void(TaskId)> function) : function_(std::move(function)) {}
  void run(TaskId task, TaskOrder* /*order*/) override { function_(task); }

 private:
  std::function<void(TaskId)> function_;
};

// A pipeline's forward: a worker per stage.
Schedule grid(std::size_t micro_batches, std::size_t stages) {
  std::vector<std::size_t> workers(stages);
  std::iota(workers.begin(), workers.end(), 0);
  return gpipeForward(micro_batches, workers);
}

TEST(Gpipe, OrderIsThePapers) {
  const std::vector<CellIndex> expected{{0, 0}, {1, 0}, {0, 1}, {2, 0}, {1, 1},
                                        {0, 2}, {2, 1}, {1, 2}, {2, 2}};
  EXPECT_EQ(gpipeOrder(3, 3), expected);
  EXPECT_EQ(gpipeOrder(1, 4).size(), 4U);
  EXPECT_EQ(gpipeOrder(5, 2).size(), 10U);
}

TEST(Gpipe, BackwardRunsFromTheEndAndWaitsForWhatGivesGradients) {
  // Micro-batch 0 is recomputed; stage 1 has nothing to do; stage 0 has a skip to stage 2.
  const Schedule schedule = gpipeBackward(2, {0, 1, 2}, {{2}, {}, {}}, [](CellIndex cell) {
    if (cell.stage == 1) return BackwardWork::kNone;
    return cell.micro_batch == 0 ? BackwardWork::kRecomputeAndBackward : BackwardWork::kBackward;
  });
  std::vector<std::pair<CellIndex, TaskKind>> found;
  for (TaskId task = 0; task < schedule.size(); ++task)
    found.emplace_back(schedule.task(task).cell, schedule.task(task).kind);
  const std::vector<std::pair<CellIndex, TaskKind>> expected{
      {{1, 2}, TaskKind::kBackward}, {{0, 2}, TaskKind::kRecompute}, {{0, 2}, TaskKind::kBackward},
      {{1, 0}, TaskKind::kBackward}, {{0, 0}, TaskKind::kRecompute}, {{0, 0}, TaskKind::kBackward}};
  EXPECT_EQ(found, expected);
  EXPECT_EQ(schedule.task(3).needs, std::vector<TaskId>{0});
  EXPECT_EQ(schedule.task(5).needs, std::vector<TaskId>{2});
  EXPECT_EQ(schedule.task(4).needs, std::vector<TaskId>()) << "a recomputation waits for nothing";
}

TEST(StageExecutor, RunsEachTaskOnceAfterWhatItNeeds) {
  for (const Running running : {Running::kInline, Running::kThreads}) {
    StageExecutor executor("test-", 3, {});
    for (int round = 0; round < 200; ++round) {
      const Schedule schedule = grid(5, 3);
      std::vector<int> progress(5, 0);  // not atomic: the graph alone orders the accesses
      std::vector<int> worker(3, 0);
      Function job([&](TaskId task) {
        const auto [i, j] = schedule.task(task).cell;
        ASSERT_EQ(progress[i], static_cast<int>(j));
        ASSERT_EQ(worker[j], static_cast<int>(i));
        ++progress[i];
        ++worker[j];
      });
      executor.run(schedule, job, running);
      EXPECT_EQ(progress, std::vector<int>(5, 3));
    }
    EXPECT_EQ(executor.threads(), running == Running::kThreads ? 3U : 0U);
    executor.stop();
    EXPECT_EQ(executor.threads(), 0U);
  }
}

TEST(StageExecutor, RunsInLineWhereNoThreadCanBeStarted) {
  StageExecutor executor("test-", 2, {});
  const Schedule schedule = grid(4, 2);
  std::vector<std::thread::id> ran;
  Function job([&](TaskId) { ran.push_back(std::this_thread::get_id()); });
  {
    const NoMoreThreads here;
    executor.run(schedule, job, Running::kThreads);
  }
  EXPECT_EQ(ran, std::vector<std::thread::id>(8, std::this_thread::get_id()));
  EXPECT_EQ(executor.threads(), 0U);
  std::atomic<int> count{0};
  Function again([&](TaskId) { ++count; });
  executor.run(schedule, again, Running::kThreads);
  EXPECT_EQ(count, 8);
  EXPECT_EQ(executor.threads(), 2U);
}

TEST(StageExecutor, ThrowsTheEarliestFailureAndSkipsWhatFollows) {
  StageExecutor executor("test-", 2, {});
  const Schedule schedule = grid(4, 2);  // (0,0) (1,0) (0,1) (2,0) (1,1) …
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
    executor.run(schedule, job, Running::kThreads);
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_EQ(later, 0);
  Function good([](TaskId) {});
  executor.run(schedule, good, Running::kThreads);
}

TEST(StageExecutor, CanBeInterrupted) {
  static std::atomic<bool> stop{false};
  transport::setInterruptHook(
      {[] { return stop = true; }, [] { throw std::logic_error("interrupted"); }});
  StageExecutor executor("test-", 2, {});
  const Schedule schedule = grid(200, 2);
  std::atomic<int> ran{0};
  Function job([&](TaskId) {
    ++ran;
    while (!stop)
      std::this_thread::yield();
    // From `stop` to the throw: all may have been done before, were they short.
    takes(std::chrono::milliseconds(1));
  });
  EXPECT_THROW(executor.run(schedule, job, Running::kThreads), std::logic_error);
  EXPECT_LT(ran, 400);
  transport::setInterruptHook({});
}

TEST(StageExecutor, TakesJobsOfSeveralThreads) {
  StageExecutor executor("test-", 3, {});
  std::vector<std::thread> callers;
  std::atomic<int> done{0};
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        const Schedule schedule = grid(3, 3);
        int count = 0;
        std::vector<int> counts(3, 0);
        Function job([&](TaskId task) { ++counts[schedule.task(task).cell.stage]; });
        executor.run(schedule, job, Running::kThreads);
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
  const Schedule outer = grid(2, 2);
  const Schedule inner = grid(2, 2);
  std::atomic<int> ran{0};
  Function nested([&](TaskId) { ++ran; });
  Function job([&](TaskId) { executor.run(inner, nested, Running::kThreads); });
  executor.run(outer, job, Running::kThreads);
  EXPECT_EQ(ran, 16);
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow a fork with threads
TEST(StageExecutor, StartsAnewInAForkedChild) {
  StageExecutor executor("test-", 2, {});
  const Schedule schedule = grid(2, 2);
  std::atomic<int> ran{0};
  Function job([&](TaskId) { ++ran; });
  executor.run(schedule, job, Running::kThreads);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    executor.run(schedule, job, Running::kThreads);
    const bool good = ran == 8 && executor.threads() == 2;
    executor.stop();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

// What the clock of the policy's test shows, in microseconds.
std::int64_t g_now = 0;

// A mini-batch whose stages run so often, and so long each time.
StageTimes timesOf(const std::vector<std::vector<std::int64_t>>& microseconds) {
  StageTimes times(microseconds.size(), [] { return g_now * 1000; });
  for (std::size_t stage = 0; stage < microseconds.size(); ++stage) {
    for (const std::int64_t duration : microseconds[stage]) {
      const StageTimes::Span span(times, stage, TaskKind::kForward);
      g_now += duration;
    }
  }
  return times;
}

TEST(ThreadPolicy, TakesThreadsUntilFewerThanTwoStagesAreLongerThanAHandOver) {
  ThreadPolicy policy;
  EXPECT_EQ(policy.choose({}), Running::kThreads);  // nothing is known yet
  policy.learn(timesOf({{20}, {20}, {20}}), {});
  EXPECT_EQ(policy.choose({}), Running::kInline);
  policy.learn(timesOf({{20000}, {20}, {20000}}), {});
  EXPECT_EQ(policy.choose({}), Running::kThreads);
  policy.learn(timesOf({{20000}, {20}, {20}}), {});
  EXPECT_EQ(policy.choose({}), Running::kInline) << "one stage has none to run beside";
}

TEST(ThreadPolicy, CompiledStagesRunInLineUntilAMiniBatchOfTheirShapesHasBeenMeasured) {
  ThreadPolicy policy;
  EXPECT_EQ(policy.choose(64), Running::kInline);
  policy.learn(timesOf({{20000}, {20000}}), 64);
  EXPECT_EQ(policy.choose(64), Running::kThreads);
  EXPECT_EQ(policy.choose(60), Running::kInline);
  policy.learn(timesOf({{20}, {20}}), 60);
  EXPECT_EQ(policy.choose(64), Running::kInline) << "threads do not pay any more";
}

TEST(ThreadPolicy, CountsTheShortestRunOfEachKindOfTask) {
  ThreadPolicy policy;
  policy.learn(timesOf({{9000, 20, 800}, {20, 900, 20}}), {});
  EXPECT_EQ(policy.choose({}), Running::kInline) << "something disturbed the longer runs";
  StageTimes times = timesOf({{20}, {20}});
  for (const std::size_t stage : {0, 1}) {
    const StageTimes::Span span(times, stage, TaskKind::kRecompute);
    g_now += 500;
  }
  policy.learn(times, {});
  EXPECT_EQ(policy.choose({}), Running::kThreads) << "recomputations are long";
}

// Tasks that take their turn do so one at a time and in the schedule's order, whatever threads run
// them, and also after one has failed.
TEST(TaskOrder, TurnsComeInTheSchedulesOrder) {
  class Turns final : public Job {
   public:
    explicit Turns(TaskId failing) : failing_(failing) {}
    void run(TaskId task, TaskOrder* order) override {
      if (task % 3 != 0) {
        EXPECT_TRUE(order->awaitTurnOf(task, std::chrono::hours(1)));
        taken.push_back(task);  // nobody else has the turn
      }
      if (task == failing_) throw std::runtime_error("here");
    }
    std::vector<TaskId> taken;

   private:
    const TaskId failing_;
  };
  StageExecutor executor("test-", 4, {});
  const Schedule schedule = grid(6, 4);
  for (int round = 0; round < 200; ++round) {
    const TaskId failing = round % 2 == 0 ? 13 : 1000;
    Turns job(failing);
    if (failing < schedule.size()) {
      EXPECT_THROW(executor.run(schedule, job, Running::kThreads), std::runtime_error);
    } else {
      executor.run(schedule, job, Running::kThreads);
      EXPECT_EQ(job.taken.size(), schedule.size() * 2 / 3);
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
