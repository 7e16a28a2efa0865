// RRefTable: single rules, then random schedules over four workers against a model.
// WEFT_SEED=N runs one schedule, WEFT_SEEDS=N the first N (default 10,000).
#include "rpc_backend/rref/rref_table.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <thread>

#include "tests/rpc_backend/rref_world.h"

namespace weft::rpc {
namespace {

class Table : public ForkTable {
 public:
  void addFork(const ForkIds& ids) override { forks.insert(ids); }
  Dropped removeFork(const ForkIds& ids) override {
    return forks.erase(ids) > 0 ? std::make_shared<int>(0) : nullptr;
  }
  void childSettled(const RRefKey& fork) override {
    const std::lock_guard lock(mutex);
    settled.insert(fork);
  }

  std::set<ForkIds> forks;
  std::mutex mutex;
  std::set<RRefKey> settled;
};

constexpr Rank kSelf = 0;
constexpr ForkIds kIds{{1, 10}, {1, 11}};

struct RRefBookTest : ::testing::Test {
  Table table;
  RRefTable table{table, kSelf};
};

TEST_F(RRefBookTest, ARepeatedForkRequestAfterTheDeletionAddsNothing) {
  table.onForkRequest(kIds, 1, table.now());
  table.onForkRequest(kIds, 1, table.now());
  EXPECT_EQ(table.forks.size(), 1U);
  table.onUserDelete(kIds);
  table.onUserDelete(kIds);
  table.onForkRequest(kIds, 1, table.now());
  EXPECT_TRUE(table.forks.empty());
  EXPECT_EQ(table.counts().repeats, 3U);
}

TEST_F(RRefBookTest, ADeletionThatOvertakesItsForkIsRemembered) {
  table.onUserDelete(kIds);
  table.onForkRequest(kIds, 1, table.now());
  EXPECT_TRUE(table.forks.empty());
  const ForkIds other{{1, 20}, {1, 21}};
  table.onUserDelete(other);
  table.addFork(other);  // torch, when the function is done
  table.onRemoteResult(other, 1, table.now());
  EXPECT_TRUE(table.forks.empty());
}

TEST_F(RRefBookTest, ALostPeersForksGoAndDoNotComeBack) {
  const auto before = table.now();
  table.onForkRequest(kIds, 1, before);
  const ForkIds of_two{{1, 10}, {1, 12}};
  table.onForkRequest(of_two, 2, before);
  table.lose(1);
  EXPECT_EQ(table.forks.size(), 2U);
  EXPECT_EQ(table.releaseForks(1), 1U);
  EXPECT_EQ(table.forks, (std::set<ForkIds>{of_two}));
  const ForkIds running{{1, 30}, {1, 31}};
  table.addFork(running);
  table.onRemoteResult(running, 1, before);
  const ForkIds late{{1, 10}, {2, 40}};
  table.onForkRequest(late, 1, before);
  EXPECT_EQ(table.forks, (std::set<ForkIds>{of_two}));
}

TEST_F(RRefBookTest, TheNextLifeOfAPeerIsHeard) {
  table.onForkRequest(kIds, 1, table.now());
  table.onUserDelete(kIds);
  table.lose(1);
  // It counts its ids from 0 again, so this is another fork.
  table.onForkRequest(kIds, 1, table.now());
  EXPECT_EQ(table.forks.size(), 1U);
  table.releaseForks(1);
  EXPECT_EQ(table.forks.size(), 1U);
}

TEST_F(RRefBookTest, WhatTheOwnerSendsIsHeldByWhoGetsIt) {
  const PickledRRef own{kSelf, {{kSelf, 1}, {kSelf, 2}}, kSelf};
  table.addFork(own.ids);
  table.onSend(own, 3);
  ASSERT_EQ(table.holdings().size(), 1U);
  EXPECT_EQ(table.holdings()[0].holder, 3);
  table.lose(3);
  EXPECT_EQ(table.releaseForks(3), 1U);
  EXPECT_TRUE(table.forks.empty());
}

TEST_F(RRefBookTest, WhatCouldNotBeSentIsUndone) {
  const PickledRRef own{kSelf, {{kSelf, 1}, {kSelf, 2}}, kSelf};
  table.addFork(own.ids);
  table.onSend(own, 3);
  table.undoSend(own);
  EXPECT_TRUE(table.forks.empty());
  const PickledRRef child{2, {{2, 1}, {kSelf, 3}}, kSelf};
  table.onSend(child, 3);
  table.undoSend(child);
  EXPECT_TRUE(table.settled.contains(child.ids.fork));
}

TEST_F(RRefBookTest, AChildOfALostPeerIsSettled) {
  const PickledRRef child{2, {{2, 1}, {kSelf, 3}}, kSelf};
  table.onSend(child, 3);
  table.lose(3);
  table.releaseForks(3);
  EXPECT_TRUE(table.settled.contains(child.ids.fork));
}

TEST_F(RRefBookTest, ManyThreads) {
  constexpr std::int64_t kForks = 2000;
  std::vector<std::thread> threads;
  for (Rank holder = 1; holder <= 4; ++holder) {
    threads.emplace_back([this, holder] {
      for (std::int64_t i = 0; i < kForks; ++i) {
        const ForkIds ids{{kSelf, i}, {holder, i}};
        table.onForkRequest(ids, holder, table.now());
        if (i % 2 == 0) table.onUserDelete(ids);
        if (i % 500 == 499 && holder == 4) {
          table.lose(holder);
          table.releaseForks(holder);
        }
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (Rank holder = 1; holder <= 4; ++holder)
    table.lose(holder);
  for (Rank holder = 1; holder <= 4; ++holder)
    table.releaseForks(holder);
  EXPECT_TRUE(table.forks.empty());
  EXPECT_TRUE(table.holdings().empty());
}

std::optional<std::string> runSchedule(std::uint32_t seed) {
  testing::World world(seed);
  for (int i = 0; i < 250; ++i) {
    world.step();
    if (auto wrong = world.problem(false)) return "step " + std::to_string(i) + ": " + *wrong;
  }
  world.settle();
  if (auto wrong = world.problem(true)) return "at rest: " + *wrong;
  world.dropAll();
  world.settle();
  if (auto wrong = world.problem(true)) return "at the end: " + *wrong;
  return std::nullopt;
}

TEST(RRefBookProperty, RandomSchedulesOverFourWorkers) {
  const char* one = std::getenv("WEFT_SEED");
  const char* count = std::getenv("WEFT_SEEDS");
  const std::uint32_t first = one != nullptr ? static_cast<std::uint32_t>(std::atoi(one)) : 0;
  const std::uint32_t seeds =
      one != nullptr ? 1
                     : (count != nullptr ? static_cast<std::uint32_t>(std::atoi(count)) : 10000);
  for (std::uint32_t seed = first; seed < first + seeds; ++seed) {
    const auto wrong = runSchedule(seed);
    ASSERT_FALSE(wrong) << "WEFT_SEED=" << seed << ": " << *wrong;
  }
}

}  // namespace
}  // namespace weft::rpc
