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

struct RRefTableTest : ::testing::Test {
  Table table;
  RRefTable rrefs{table, kSelf};
};

TEST_F(RRefTableTest, ARepeatedForkRequestAfterTheDeletionAddsNothing) {
  rrefs.onForkRequest(kIds, 1, rrefs.lossCount());
  rrefs.onForkRequest(kIds, 1, rrefs.lossCount());
  EXPECT_EQ(table.forks.size(), 1U);
  rrefs.onUserDelete(kIds, 1);
  rrefs.onUserDelete(kIds, 1);
  rrefs.onForkRequest(kIds, 1, rrefs.lossCount());
  EXPECT_TRUE(table.forks.empty());
  EXPECT_EQ(rrefs.counts().repeats, 3U);
}

TEST_F(RRefTableTest, ADeletionThatOvertakesItsForkIsRemembered) {
  rrefs.onUserDelete(kIds, 1);
  rrefs.onForkRequest(kIds, 1, rrefs.lossCount());
  EXPECT_TRUE(table.forks.empty());
  const ForkIds other{{1, 20}, {1, 21}};
  rrefs.onUserDelete(other, 1);
  table.addFork(other);  // torch, when the function is done
  rrefs.onRemoteResult(other, 1, rrefs.lossCount());
  EXPECT_TRUE(table.forks.empty());
}

TEST_F(RRefTableTest, ALostPeersForksGoAndDoNotComeBack) {
  const auto before = rrefs.lossCount();
  rrefs.onForkRequest(kIds, 1, before);
  const ForkIds of_two{{1, 10}, {1, 12}};
  rrefs.onForkRequest(of_two, 2, before);
  rrefs.lose(1);
  EXPECT_EQ(table.forks.size(), 2U);
  EXPECT_EQ(rrefs.releaseForks(1), 1U);
  EXPECT_EQ(table.forks, (std::set<ForkIds>{of_two}));
  const ForkIds running{{1, 30}, {1, 31}};
  table.addFork(running);
  rrefs.onRemoteResult(running, 1, before);
  const ForkIds late{{1, 10}, {2, 40}};
  rrefs.onForkRequest(late, 1, before);
  EXPECT_EQ(table.forks, (std::set<ForkIds>{of_two}));
}

TEST_F(RRefTableTest, TheNextLifeOfAPeerIsHeard) {
  rrefs.onForkRequest(kIds, 1, rrefs.lossCount());
  rrefs.onUserDelete(kIds, 1);
  rrefs.lose(1);
  // It counts its ids from 0 again, so this is another fork.
  rrefs.onForkRequest(kIds, 1, rrefs.lossCount());
  EXPECT_EQ(table.forks.size(), 1U);
  rrefs.releaseForks(1);
  EXPECT_EQ(table.forks.size(), 1U);
}

TEST_F(RRefTableTest, ANextLifesForkOfTheSameIdDoesNotKeepAFormerLifesValue) {
  rrefs.onForkRequest(kIds, 1, rrefs.lossCount());
  rrefs.lose(1);
  // Its first messages are served before the former life's forks are released.
  const ForkIds next{{1, 12}, kIds.fork};
  rrefs.onForkRequest(next, 1, rrefs.lossCount());
  EXPECT_EQ(table.forks, (std::set<ForkIds>{next}));
  const ForkIds result{{1, 13}, kIds.fork};
  rrefs.lose(1);
  table.addFork(result);
  rrefs.onRemoteResult(result, 1, rrefs.lossCount());
  EXPECT_EQ(table.forks, (std::set<ForkIds>{result}));
  rrefs.lose(1);
  rrefs.releaseForks(1);
  EXPECT_TRUE(table.forks.empty());
}

TEST_F(RRefTableTest, ADeletionThatNamesAnotherValueEndsNoFork) {
  rrefs.onForkRequest(kIds, 1, rrefs.lossCount());
  rrefs.onUserDelete({{1, 12}, kIds.fork}, 1);
  EXPECT_EQ(table.forks.size(), 1U);
  rrefs.lose(1);
  EXPECT_EQ(rrefs.releaseForks(1), 1U);
  EXPECT_TRUE(table.forks.empty());
}

// Ids can be guessed: who does not hold a fork may name it all the same.

TEST_F(RRefTableTest, NobodyEndsAForkThatAnotherHolds) {
  rrefs.onForkRequest(kIds, 1, rrefs.lossCount());
  rrefs.onUserDelete(kIds, 3);
  EXPECT_TRUE(table.forks.contains(kIds));
  rrefs.onForkRequest(kIds, 3, rrefs.lossCount());  // remembered: its own deletion came first
  const ForkIds other{{1, 10}, {1, 12}};
  rrefs.onForkRequest(other, 3, rrefs.lossCount());  // before the one who is to have it
  rrefs.onForkRequest(other, 2, rrefs.lossCount());
  rrefs.onUserDelete(other, 3);
  EXPECT_EQ(table.forks, (std::set<ForkIds>{kIds, other}));
  rrefs.onUserDelete(kIds, 1);
  rrefs.onUserDelete(other, 2);
  EXPECT_TRUE(table.forks.empty());
}

TEST_F(RRefTableTest, ADeletionByAnotherThatComesFirstEndsNothing) {
  rrefs.onUserDelete(kIds, 3);
  rrefs.onRemoteCall(kIds, 1, rrefs.lossCount());
  rrefs.onUserDelete(kIds, 3);
  table.addFork(kIds);  // torch, when the function is done
  rrefs.onUserDelete(kIds, 3);
  rrefs.onRemoteResult(kIds, 1, rrefs.lossCount());
  rrefs.onUserDelete(kIds, 3);
  EXPECT_EQ(table.forks, (std::set<ForkIds>{kIds}));
}

// Torch throws when it is to add a fork that it has.
TEST_F(RRefTableTest, ACallFindsTheForkThatItIsToMakeFree) {
  rrefs.onForkRequest(kIds, 3, rrefs.lossCount());
  EXPECT_TRUE(table.forks.contains(kIds));
  rrefs.onRemoteCall(kIds, 1, rrefs.lossCount());
  EXPECT_TRUE(table.forks.empty());
  rrefs.onForkRequest(kIds, 2, rrefs.lossCount());
  EXPECT_TRUE(table.forks.empty());
  table.addFork(kIds);
  rrefs.onRemoteResult(kIds, 1, rrefs.lossCount());
  rrefs.onUserDelete(kIds, 3);
  rrefs.onUserDelete(kIds, 2);
  EXPECT_EQ(table.forks, (std::set<ForkIds>{kIds}));
  rrefs.onUserDelete(kIds, 1);
  EXPECT_TRUE(table.forks.empty());
}

TEST_F(RRefTableTest, ADeletionWhileTheCallRunsIsRemembered) {
  rrefs.onRemoteCall(kIds, 1, rrefs.lossCount());
  rrefs.onUserDelete(kIds, 1);
  table.addFork(kIds);
  rrefs.onRemoteResult(kIds, 1, rrefs.lossCount());
  EXPECT_TRUE(table.forks.empty());
  EXPECT_TRUE(rrefs.holdings().empty());
}

TEST_F(RRefTableTest, ACallOfALostPeerIsReleasedOnce) {
  const ForkIds other{{1, 20}, {1, 21}};
  const auto before = rrefs.lossCount();
  rrefs.onRemoteCall(kIds, 1, before);
  rrefs.onRemoteCall(other, 1, before);
  rrefs.lose(1);
  table.addFork(kIds);
  rrefs.onRemoteResult(kIds, 1, before);
  EXPECT_EQ(rrefs.releaseForks(1), 1U);
  table.addFork(other);
  rrefs.onRemoteResult(other, 1, before);
  EXPECT_TRUE(table.forks.empty());
  EXPECT_EQ(rrefs.counts().released, 2U);
}

TEST_F(RRefTableTest, NothingIsKeptOfACallThatFails) {
  rrefs.onRemoteCall(kIds, 1, rrefs.lossCount());
  rrefs.onForkRequest(kIds, 3, rrefs.lossCount());
  rrefs.onRemoteFailure(kIds);
  EXPECT_TRUE(rrefs.holdings().empty());
  EXPECT_TRUE(table.forks.empty());
}

TEST_F(RRefTableTest, OnlyWhoGotAChildAcceptsIt) {
  const PickledRRef child{2, {{2, 1}, {kSelf, 3}}, kSelf};
  rrefs.onChildAccept(child.ids.fork, 3);
  rrefs.beforeSend(child, 3);
  rrefs.onChildAccept(child.ids.fork, 1);
  EXPECT_FALSE(table.settled.contains(child.ids.fork));
  rrefs.onChildAccept(child.ids.fork, 3);
  EXPECT_TRUE(table.settled.contains(child.ids.fork));
}

TEST_F(RRefTableTest, WhatTheOwnerSendsIsHeldByWhoGetsIt) {
  const PickledRRef own{kSelf, {{kSelf, 1}, {kSelf, 2}}, kSelf};
  table.addFork(own.ids);
  rrefs.beforeSend(own, 3);
  ASSERT_EQ(rrefs.holdings().size(), 1U);
  EXPECT_EQ(rrefs.holdings()[0].holder, 3);
  rrefs.lose(3);
  EXPECT_EQ(rrefs.releaseForks(3), 1U);
  EXPECT_TRUE(table.forks.empty());
}

TEST_F(RRefTableTest, WhatCouldNotBeSentIsUndone) {
  const PickledRRef own{kSelf, {{kSelf, 1}, {kSelf, 2}}, kSelf};
  table.addFork(own.ids);
  rrefs.beforeSend(own, 3);
  rrefs.undoSend(own);
  EXPECT_TRUE(table.forks.empty());
  const PickledRRef child{2, {{2, 1}, {kSelf, 3}}, kSelf};
  rrefs.beforeSend(child, 3);
  rrefs.undoSend(child);
  EXPECT_TRUE(table.settled.contains(child.ids.fork));
}

TEST_F(RRefTableTest, AChildOfALostPeerIsSettled) {
  const PickledRRef child{2, {{2, 1}, {kSelf, 3}}, kSelf};
  rrefs.beforeSend(child, 3);
  rrefs.lose(3);
  rrefs.releaseForks(3);
  EXPECT_TRUE(table.settled.contains(child.ids.fork));
}

TEST_F(RRefTableTest, ManyThreads) {
  constexpr std::int64_t kForks = 2000;
  std::vector<std::thread> threads;
  for (Rank holder = 1; holder <= 4; ++holder) {
    threads.emplace_back([this, holder] {
      for (std::int64_t i = 0; i < kForks; ++i) {
        const ForkIds ids{{kSelf, i}, {holder, i}};
        rrefs.onForkRequest(ids, holder, rrefs.lossCount());
        if (i % 2 == 0) rrefs.onUserDelete(ids, holder);
        if (i % 500 == 499 && holder == 4) {
          rrefs.lose(holder);
          rrefs.releaseForks(holder);
        }
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (Rank holder = 1; holder <= 4; ++holder)
    rrefs.lose(holder);
  for (Rank holder = 1; holder <= 4; ++holder)
    rrefs.releaseForks(holder);
  EXPECT_TRUE(table.forks.empty());
  EXPECT_TRUE(rrefs.holdings().empty());
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

TEST(RRefTableProperty, RandomSchedulesOverFourWorkers) {
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
