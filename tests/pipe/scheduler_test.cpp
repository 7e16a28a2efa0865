// The scheduler alone: order, failures, threads. Under ThreadSanitizer these are the tests that
// count.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "pipe/clock.h"
#include "pipe/crew.h"
#include "pipe/pace.h"
#include "pipe/timeline.h"

namespace weft::pipe {
namespace {

class Function final : public Job {
 public:
  explicit Function(std::function<void(TaskId)> function) : function_(std::move(function)) {}
  void run(TaskId task) override { function_(task); }

 private:
  std::function<void(TaskId)> function_;
};

// A pipeline's forward: a lane per stage.
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

TEST(Crew, RunsEachTaskOnceAfterWhatItNeeds) {
  for (const Running running : {Running::kInline, Running::kThreads}) {
    Crew crew("test-", 3, {});
    for (int round = 0; round < 200; ++round) {
      const Grid grid(5, 3);
      std::vector<int> progress(5, 0);  // not atomic: the graph alone orders the accesses
      std::vector<int> lane(3, 0);
      Function job([&](TaskId task) {
        const auto [i, j] = grid.order[task];
        ASSERT_EQ(progress[i], static_cast<int>(j));
        ASSERT_EQ(lane[j], static_cast<int>(i));
        ++progress[i];
        ++lane[j];
      });
      crew.run(grid.graph, job, running);
      EXPECT_EQ(progress, std::vector<int>(5, 3));
    }
    EXPECT_EQ(crew.threads(), running == Running::kThreads ? 3U : 0U);
    crew.stop();
    EXPECT_EQ(crew.threads(), 0U);
  }
}

TEST(Crew, ThrowsTheEarliestFailureAndLeavesOutWhatFollows) {
  Crew crew("test-", 2, {});
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
    crew.run(grid.graph, job, Running::kThreads);
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_EQ(later, 0);
  Function good([](TaskId) {});
  crew.run(grid.graph, good, Running::kThreads);
}

TEST(Crew, CanBeInterrupted) {
  ThreadHooks hooks;
  std::atomic<bool> stop{false};
  hooks.interrupted = [&] {
    stop = true;
    throw std::logic_error("interrupted");
  };
  Crew crew("test-", 2, hooks);
  const Grid grid(3, 2);
  std::atomic<int> ran{0};
  Function job([&](TaskId) {
    ++ran;
    while (!stop)
      std::this_thread::yield();
  });
  EXPECT_THROW(crew.run(grid.graph, job, Running::kThreads), std::logic_error);
  EXPECT_LT(ran, 6);
}

TEST(Crew, TakesJobsOfSeveralThreads) {
  Crew crew("test-", 3, {});
  std::vector<std::thread> callers;
  std::atomic<int> done{0};
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        const Grid grid(3, 3);
        int count = 0;
        std::vector<int> counts(3, 0);
        Function job([&](TaskId task) { ++counts[grid.order[task].stage]; });
        crew.run(grid.graph, job, Running::kThreads);
        for (const int lane : counts)
          count += lane;
        EXPECT_EQ(count, 9);
        ++done;
      }
    });
  }
  for (std::thread& caller : callers)
    caller.join();
  EXPECT_EQ(done, 200);
  EXPECT_EQ(crew.threads(), 3U);
}

TEST(Crew, RunsInlineFromItsOwnThreads) {
  Crew crew("test-", 2, {});
  const Grid outer(2, 2);
  const Grid inner(2, 2);
  std::atomic<int> ran{0};
  Function nested([&](TaskId) { ++ran; });
  Function job([&](TaskId) { crew.run(inner.graph, nested, Running::kThreads); });
  crew.run(outer.graph, job, Running::kThreads);
  EXPECT_EQ(ran, 16);
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow a fork with threads
TEST(Crew, StartsAnewInAForkedChild) {
  Crew crew("test-", 2, {});
  const Grid grid(2, 2);
  std::atomic<int> ran{0};
  Function job([&](TaskId) { ++ran; });
  crew.run(grid.graph, job, Running::kThreads);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    crew.run(grid.graph, job, Running::kThreads);
    const bool good = ran == 8 && crew.threads() == 2;
    crew.stop();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

TEST(Pace, KeepsTheFasterWayAndTriesTheOther) {
  for (const bool threads_win : {true, false}) {
    Pace pace;
    int threads = 0;
    for (int round = 0; round < 300; ++round) {
      const Running way = pace.choose();
      threads += way == Running::kThreads ? 1 : 0;
      pace.report(way, (way == Running::kThreads) == threads_win ? 1e-3 : 2e-3);
    }
    EXPECT_GT(threads_win ? threads : 300 - threads, 280);
    EXPECT_LT(threads_win ? threads : 300 - threads, 300);
  }
}

TEST(Pace, LeavesShortTasksInline) {
  Pace pace;
  for (int round = 0; round < 300; ++round) {
    EXPECT_EQ(pace.choose(), Running::kInline);
    pace.report(Running::kInline, 5e-6);
  }
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
