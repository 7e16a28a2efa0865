// How workers meet in the Store: their records and the membership, each worker a thread.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rpc_backend/group/member_table.h"
#include "rpc_backend/join/member_record.h"
#include "rpc_backend/join/membership.h"
#include "rpc_backend/join/store_access.h"
#include "rpc_backend/wire/wire.h"
#include "transport/io/socket.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)
using Clock = std::chrono::steady_clock;

// Records.

MemberRecord someRecord(std::int32_t rank, const std::string& name, int world) {
  MemberRecord record;
  record.rank = rank;
  record.world = world;
  record.name = name;
  record.auth = "store";
  record.policy = "any";
  record.address = "weft1;tcp=127.0.0.1:" + std::to_string(1000 + rank);
  return record;
}

TEST(MemberTable, TurnsRoundTheMapsOfItsMembers) {
  const c10::Device here("cuda:0");
  const auto recordOf = [&](std::int32_t rank, const char* name, const char* theirs) {
    MemberRecord record = someRecord(rank, name, 0);
    record.device_maps["self"] = {{c10::Device(theirs), here}};
    return record;
  };
  MemberTable members("self");
  members.add(someRecord(1, "plain", 0));
  members.add(recordOf(2, "a", "cuda:1"));
  members.add(recordOf(3, "b", "cuda:2"));
  EXPECT_TRUE(members.reverseMap("plain").empty());
  EXPECT_EQ(members.reverseMap("a"), (DeviceMap{{here, c10::Device("cuda:1")}}));
  members.add(recordOf(4, "a", "cuda:3"));  // rank 2 is lost
  EXPECT_EQ(members.reverseMap("a"), (DeviceMap{{here, c10::Device("cuda:3")}}));
  members.remove(2);
  EXPECT_EQ(members.reverseMap("a"), (DeviceMap{{here, c10::Device("cuda:3")}}));
  members.remove(4);
  EXPECT_TRUE(members.reverseMap("a").empty());
  members.add(someRecord(3, "b", 0));  // again, without a map
  EXPECT_TRUE(members.reverseMap("b").empty());
}

TEST(MemberRecord, WhatIsWrittenIsRead) {
  MemberRecord record = someRecord(3, "worker:3", 8);
  record.device_count = 2;
  record.devices = {c10::Device("cuda:0"), c10::Device("cuda:1")};
  record.device_maps["peer"] = {{c10::Device("cuda:0"), c10::Device("cuda:1")},
                                {c10::Device("cpu"), c10::Device("cpu")}};
  const auto read = MemberRecord::fromText(record.toText());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->toText().size(), record.toText().size());
  EXPECT_EQ(read->weft, kWeftVersion);
  EXPECT_EQ(read->rank, 3);
  EXPECT_EQ(read->world, 8);
  EXPECT_EQ(read->name, "worker:3");
  EXPECT_EQ(read->address, record.address);
  EXPECT_EQ(read->devices, record.devices);
  EXPECT_EQ(read->device_maps, record.device_maps);
}

// Workers of two versions cut each other off as soon as they talk, so they must not form a group.
TEST(MemberRecord, NamesTheVersionOfTheMessages) { EXPECT_EQ(MemberRecord().wire, kWireVersion); }

TEST(MemberRecord, FieldsOfLaterVersionsAreSkipped) {
  const auto read = MemberRecord::fromText(someRecord(0, "a", 1).toText() + "later=x=y\n");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->name, "a");
}

TEST(MemberRecord, TheRestIsRefused) {
  const std::string good = someRecord(0, "a", 1).toText();
  for (const std::string& bad :
       {std::string(), std::string("rank"), std::string("rank=0\nname=a\n"),
        good + "no equals sign\n", good + "rank=x\n", good + "rank=32768\n", good + "rank=1 \n",
        good + "rank=99999999999999999999\n", good + "rank=-1\n", good + "name=\n",
        good + "device=nonsense:7\n", good + "device=\n", good + "map.b=cuda:0\n",
        good + "map.b=cuda:0>\n", good + "map.b=a>b>c\n", std::string(2 << 20, 'a')}) {
    EXPECT_FALSE(MemberRecord::fromText(bad)) << bad.substr(0, 200);
  }
  for (std::size_t length = 0; length < good.size(); ++length) {
    MemberRecord::fromText(good.substr(0, length));  // no crash, whatever it says
  }
}

// Membership, each worker a thread.

c10::intrusive_ptr<c10d::Store> newStore(std::chrono::milliseconds timeout = 10s) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(timeout);
  return store;
}

// Runs `body(i)` on `count` threads; the texts of what they threw, "" for nothing.
std::vector<std::string> onThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(i)] = error.what();
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  return errors;
}

TEST(Membership, AStaticGroupMeets) {
  const auto store = newStore();
  std::atomic<int> members{0};
  std::vector<std::string> keys(6);
  const auto errors = onThreads(6, [&](int i) {
    Membership membership(store, "w" + std::to_string(i), i, 6);
    keys[static_cast<std::size_t>(i)] = membership.secret("").key.toHex();
    members += static_cast<int>(membership.meet(someRecord(i, "w" + std::to_string(i), 6)).size());
  });
  for (const auto& error : errors)
    EXPECT_EQ(error, "");
  EXPECT_EQ(members, 6 * 5);
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), 1U);
}

// Counts what one worker asks of the Store, but for looks at whether something has come: how often
// it looks depends on how long it waits.
class CountingStore final : public c10d::PrefixStore {
 public:
  explicit CountingStore(c10::intrusive_ptr<c10d::Store> store)
      : c10d::PrefixStore("counted", std::move(store)) {}
  using c10d::PrefixStore::compareSet;
  using c10d::PrefixStore::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    ++words;
    PrefixStore::set(key, value);
  }
  std::vector<std::uint8_t> compareSet(const std::string& key,
                                       const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override {
    ++words;
    return PrefixStore::compareSet(key, expected, desired);
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    ++words;
    return PrefixStore::get(key);
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    ++words;
    return PrefixStore::add(key, value);
  }
  bool check(const std::vector<std::string>& keys) override {
    ++looks;
    most_looked_at = std::max(most_looked_at, keys.size());
    return PrefixStore::check(keys);
  }
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    words += keys.size();
    return PrefixStore::multiGet(keys);
  }
  std::size_t words = 0;
  std::size_t looks = 0;
  std::size_t most_looked_at = 0;  // keys at once
};

TEST(Membership, AWorkerAsksNoMoreOfTheStoreInALargeGroup) {
  std::map<int, std::size_t> words;  // of the worker that said most, by the group's size
  for (const int world : {3, 80}) {
    const auto store = newStore(30s);
    std::vector<c10::intrusive_ptr<CountingStore>> counted;
    for (int i = 0; i < world; ++i)
      counted.push_back(c10::make_intrusive<CountingStore>(store));
    std::atomic<int> members{0};
    const auto errors = onThreads(world, [&](int i) {
      const std::string name = "w" + std::to_string(i);
      Membership membership(counted[static_cast<std::size_t>(i)], name, i, world);
      membership.secret("");
      members += static_cast<int>(membership.meet(someRecord(i, name, world)).size());
    });
    for (const auto& error : errors)
      EXPECT_EQ(error, "");
    EXPECT_EQ(members, world * (world - 1));
    for (int i = 1; i < world; ++i) {
      const CountingStore& store_of = *counted[static_cast<std::size_t>(i)];
      words[world] = std::max(words[world], store_of.words);
      if (world == 80) {
        EXPECT_EQ(store_of.most_looked_at, 1U);
      }
    }
  }
  // One more: the outcome may come just as a look has ended.
  EXPECT_LE(words[80], words[3] + 1);
}

TEST(AbsentRanks, AreFoundInOrderByFewQuestions) {
  const auto store = c10::make_intrusive<CountingStore>(newStore());
  std::vector<std::int32_t> ranks(1000);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto key = [](std::int32_t rank) { return std::to_string(rank); };
  const std::vector<std::int32_t> absent{0, 499, 500, 999};
  for (const std::int32_t rank : ranks) {
    if (!std::binary_search(absent.begin(), absent.end(), rank))
      store->set(key(rank), std::string("here"));
  }
  EXPECT_EQ(absentRanks(*store, ranks, key), absent);
  EXPECT_EQ(absentRanks(*store, ranks, key, 2), (std::vector<std::int32_t>{0, 499}));
  EXPECT_EQ(absentRanks(*store, std::span(ranks).subspan(1, 498), key),
            std::vector<std::int32_t>());
  EXPECT_LE(store->looks, 4U * 2 * 11 * 2);
}

TEST(Membership, TheMissingAreNamedInTime) {
  const auto store = newStore(2s);
  const auto started = Clock::now();
  const auto errors = onThreads(2, [&](int i) {
    Membership membership(store, "w" + std::to_string(i), i, 4);
    membership.meet(someRecord(i, "w" + std::to_string(i), 4));
  });
  EXPECT_LT(Clock::now() - started, 15s);
  for (const auto& error : errors) {
    EXPECT_NE(error.find("gave up waiting for ranks 2, 3 of 4"), std::string::npos) << error;
  }
}

TEST(Membership, OneWhoSeesThatItCannotBeTellsTheOthers) {
  const auto store = newStore();
  const auto started = Clock::now();
  const auto errors = onThreads(2, [&](int i) {
    const int world = i == 0 ? 2 : 5;  // rank 1 waits for ranks that nobody starts
    Membership membership(store, "w" + std::to_string(i), i, world);
    membership.meet(someRecord(i, "w" + std::to_string(i), world));
  });
  EXPECT_LT(Clock::now() - started, 5s);
  for (const auto& error : errors)
    EXPECT_NE(error.find("different world_size"), std::string::npos) << error;
}

TEST(Membership, ADynamicGroupKnowsAllWhoJoined) {
  const auto store = newStore();
  std::atomic<int> seen{0};
  const auto errors = onThreads(8, [&](int i) {
    Membership membership(store, "w" + std::to_string(i), i, 0);
    seen += static_cast<int>(membership.join(someRecord(i, "w" + std::to_string(i), 0)).size());
  });
  for (const auto& error : errors)
    EXPECT_EQ(error, "");
  EXPECT_EQ(seen, 7 * 8 / 2);  // the first sees nobody, the last all others
  const auto left = onThreads(8, [&](int i) {
    const std::string name = "w" + std::to_string(i);
    if (i % 2 == 0) Membership(store, name, i, 0).forget(i, someRecord(i, name, 0).address);
  });
  Membership next(store, "next", 2, 0);
  EXPECT_EQ(next.join(someRecord(2, "next", 0)).size(), 4U);
}

// A worker that lives: its record's address listens.
struct Listening {
  explicit Listening(MemberRecord& record) : socket(transport::listenTcp("127.0.0.1").value()) {
    record.address = "weft1;tcp=127.0.0.1:" + std::to_string(socket.port);
  }
  transport::BoundSocket socket;
};

TEST(Membership, TwoOfOneRankThatCannotReachEachOtherAreRefused) {
  const auto store = newStore();
  const auto errors = onThreads(3, [&](int i) {
    const std::int32_t rank = std::min(i, 1);
    MemberRecord record = someRecord(rank, "w" + std::to_string(i), 3);
    record.address += std::to_string(i);
    Membership(store, record.name, rank, 3).meet(record);
  });
  for (const auto& error : errors)
    EXPECT_NE(error.find("two workers were started with rank 1"), std::string::npos) << error;
}

TEST(Membership, TheLostAreForgottenTheirSuccessorsAreNot) {
  const auto store = newStore();
  Membership first(store, "a", 0, 0);
  first.join(someRecord(0, "a", 0));
  Membership dead(store, "b", 1, 0);
  const MemberRecord record = someRecord(1, "b", 0);
  dead.join(record);
  first.forget(1, record.address);
  MemberRecord again = record;
  {
    const Listening alive(again);
    EXPECT_EQ(Membership(store, "b", 1, 0).join(again).size(), 1U);
    first.forget(1, record.address);  // late news of the first life
    EXPECT_THROW(Membership(store, "c", 1, 0).join(someRecord(1, "c", 0)), c10::Error);
  }
  // Nobody has noticed that it died.
  EXPECT_EQ(Membership(store, "c", 1, 0).join(someRecord(1, "c", 0)).size(), 1U);
}

TEST(Membership, OneThatCouldNotJoinPutsBackWhomItReplaced) {
  const auto store = newStore();
  Membership(store, "a", 0, 0).join(someRecord(0, "a", 0));
  const MemberRecord unreachable = someRecord(1, "b", 0);
  Membership(store, "b", 1, 0).join(unreachable);
  Membership second(store, "b", 1, 0);
  MemberRecord again = unreachable;
  again.address = "weft1;tcp=127.0.0.1:9";
  second.join(again);
  second.withdraw(again.address);
  const auto seen = Membership(store, "c", 2, 0).join(someRecord(2, "c", 0));
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_TRUE(std::ranges::any_of(
      seen, [&](const MemberRecord& member) { return member.address == unreachable.address; }));
}

TEST(Membership, OneThatLeavesIsNotPutBack) {
  const auto store = newStore();
  Membership leaver(store, "a", 0, 0);
  const MemberRecord record = someRecord(0, "a", 0);
  leaver.join(record);
  EXPECT_EQ(leaver.restore(record).size(), 1U);
  leaver.forget(0, record.address);
  EXPECT_EQ(leaver.restore(record).size(), 0U);
}

TEST(Membership, TheLostThatComeBackAreOnTheListAgain) {
  const auto store = newStore();
  Membership first(store, "a", 0, 0);
  first.join(someRecord(0, "a", 0));
  const MemberRecord record = someRecord(1, "b", 0);
  Membership(store, "b", 1, 0).join(record);
  first.forget(1, record.address);
  for (int i = 0; i < 2; ++i)
    first.restore(record);
  EXPECT_EQ(Membership(store, "c", 2, 0).join(someRecord(2, "c", 0)).size(), 2U);
  // Its successor stays.
  first.forget(1, record.address);
  MemberRecord again = record;
  again.address = "weft1;tcp=127.0.0.1:9";
  Membership(store, "b", 1, 0).join(again);
  first.restore(record);
  const auto seen = Membership(store, "d", 3, 0).join(someRecord(3, "d", 0));
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_TRUE(std::any_of(seen.begin(), seen.end(), [&](const MemberRecord& member) {
    return member.rank == 1 && member.address == again.address;
  }));
}

TEST(Membership, AListThatIsNoneIsRefused) {
  for (const std::string list : {".\nrank=x\n.\n", "0 1 ."}) {
    Membership membership(newStore(), "a", 0, 0);
    membership.store()->set("members", list);
    try {
      membership.join(someRecord(0, "a", 0));
      FAIL() << "joined a group whose list cannot be read";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("list of the group's workers"), std::string::npos);
    }
  }
}

TEST(Membership, ARecordThatOthersCannotReadIsRefused) {
  MemberRecord record = someRecord(0, "a", 0);
  record.device_maps["work=er"] = {{c10::Device("cuda:0"), c10::Device("cuda:1")}};
  Membership membership(newStore(), "a", 0, 0);
  EXPECT_THROW(membership.join(record), c10::ValueError);
  EXPECT_FALSE(membership.store()->check({"members"}));
}

}  // namespace
}  // namespace weft::rpc
