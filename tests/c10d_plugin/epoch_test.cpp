// The ranks of a group agree on who takes part, in a Store that remembers other epochs of it.
#include "c10d_plugin/store/epoch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/store/all_gather.h"

#include "tests/support/waiting.h"

namespace weft::collectives {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;
using transport::Error;
using transport::ErrorCode;
using transport::Result;

constexpr std::chrono::seconds kPatience{30};

// What outlives the ranks: torchrun's store, which the workers of the next epoch find as it was.
class Memory final : public KeyValue {
 public:
  Error set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    ++words_;
    came_.notify_all();
    return Error::ok();
  }
  Result<std::string> get(const std::string& key, steady_clock::time_point deadline) override {
    std::unique_lock lock(mutex_);
    ++words_;
    if (!came_.wait_until(lock, deadline, [&] { return values_.contains(key); }))
      return Error(ErrorCode::kTimeout, "no " + key);
    return values_[key];
  }
  // Several at once, as torch's Store answers them: one word.
  Result<std::vector<std::string>> getAll(const std::vector<std::string>& keys,
                                          steady_clock::time_point deadline) override {
    std::unique_lock lock(mutex_);
    ++words_;
    const auto there = [&] {
      return std::all_of(keys.begin(), keys.end(),
                         [&](const std::string& key) { return values_.contains(key); });
    };
    if (!came_.wait_until(lock, deadline, there)) return Error(ErrorCode::kTimeout, "not all");
    std::vector<std::string> values;
    for (const std::string& key : keys)
      values.push_back(values_[key]);
    return values;
  }
  int words() {
    const std::lock_guard lock(mutex_);
    return words_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::map<std::string, std::string> values_;
  int words_ = 0;  // exchanged with all ranks
};

// A epoch of the group: each rank comes `delays[rank]` late.
std::vector<Result<std::string>> live(Memory& store, const std::vector<milliseconds>& delays,
                                      milliseconds limit = kPatience) {
  const int size = static_cast<int>(delays.size());
  std::vector<Result<std::string>> epochs(delays.size(), Error(ErrorCode::kSystem, "did not run"));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto mine = static_cast<std::size_t>(rank);
      takes(delays[mine]);
      epochs[mine] = agreeOnEpoch(store, rank, size, steady_clock::now() + limit);
    });
  }
  for (std::thread& rank : ranks)
    rank.join();
  return epochs;
}

TEST(FreshStart, AllGetOneNonce) {
  Memory store;
  const auto epochs = live(store, {milliseconds(0), milliseconds(20), milliseconds(5)});
  for (const auto& epoch : epochs) {
    ASSERT_TRUE(epoch.ok()) << epoch.error().text();
    EXPECT_EQ(epoch.value(), epochs.front().value());
    EXPECT_EQ(epoch.value().size(), 16U);
  }
}

TEST(FreshStart, AGroupOfOneNeedsNobody) {
  Memory store;
  const auto epoch = agreeOnEpoch(store, 0, 1, steady_clock::now() + kPatience);
  EXPECT_TRUE(epoch.ok());
}

// Whoever comes first finds a complete group there, of ranks that are dead.
TEST(FreshStart, AFormerLifeIsNotBelieved) {
  Memory store;
  std::set<std::string> nonces;
  for (int number = 0; number < 20; ++number) {
    // Another rank is the last one each time.
    std::vector<milliseconds> delays(3, milliseconds(0));
    delays[static_cast<std::size_t>(number % 3)] = milliseconds(10);
    const auto epochs = live(store, delays);
    for (const auto& epoch : epochs) {
      ASSERT_TRUE(epoch.ok()) << epoch.error().text();
      EXPECT_EQ(epoch.value(), epochs.front().value());
    }
    nonces.insert(epochs.front().value());
  }
  EXPECT_EQ(nonces.size(), 20U);
}

TEST(FreshStart, OneThatIsMissingIsNamedAlthoughItWasThereInAFormerLife) {
  Memory store;
  ASSERT_TRUE(live(store, std::vector<milliseconds>(3)).front().ok());
  std::vector<Result<std::string>> epochs(2, Error(ErrorCode::kSystem, "did not run"));
  std::vector<std::thread> ranks;
  for (const int rank : {0, 2}) {
    ranks.emplace_back([&, rank] {
      epochs[static_cast<std::size_t>(rank / 2)] =
          agreeOnEpoch(store, rank, 3, steady_clock::now() + milliseconds(1500));
    });
  }
  for (std::thread& rank : ranks)
    rank.join();
  for (const auto& epoch : epochs) {
    ASSERT_FALSE(epoch.ok());
    EXPECT_EQ(epoch.error().code(), ErrorCode::kTimeout);
    EXPECT_THAT(epoch.error().text(), HasSubstr("rank 1"));
  }
}

TEST(FreshStart, OneThatNeverCameIsNamed) {
  Memory store;
  const auto epoch = agreeOnEpoch(store, 0, 2, steady_clock::now() + milliseconds(50));
  ASSERT_FALSE(epoch.ok());
  EXPECT_EQ(epoch.error().code(), ErrorCode::kTimeout);
  EXPECT_THAT(epoch.error().text(), HasSubstr("rank 1"));
}

TEST(FreshStart, AGatheringOfManyTakesTwoWordsOfEach) {
  constexpr int kRanks = 40;
  Memory store;
  std::vector<std::thread> threads;
  std::vector<std::vector<std::string>> heard(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto said = storeAllGather(store, "topic", "I am " + std::to_string(rank), rank,
                                       allRanks(kRanks), steady_clock::now() + kPatience);
      if (said.ok()) heard[static_cast<std::size_t>(rank)] = said.value();
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (const auto& said : heard) {
    ASSERT_EQ(said.size(), kRanks);
    EXPECT_EQ(said[7], "I am 7");
  }
  // Each says its own and hears all; the first says all as well.
  EXPECT_EQ(store.words(), 2 * kRanks + 1);
}

TEST(FreshStart, TextsComeOutAsTheyWentIn) {
  const std::vector<std::string> texts{"", "a:b", "12:", std::string("\0\n", 2)};
  EXPECT_EQ(splitTexts(joinTexts(texts)), texts);
  for (const char* bad : {"1", "x:a", "2:a", "-1:a", ":", "99999999999999999999:a"})
    EXPECT_EQ(splitTexts(bad), std::nullopt) << bad;
}

}  // namespace
}  // namespace weft::collectives
