// Groups that two ranks split off theirs. Both ranks are in this process, so their collectives go
// by messages: shared memory tells ranks apart by their processes.
#include "c10d_plugin/backend/backend.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/waiting.h"

namespace weft::process_group {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr seconds kPatience{30};

class Splits : public testing::Test {
 protected:
  Splits() {
    ::setenv("WEFT_SHARED_MEMORY", "0", 1);
    auto first = std::async(std::launch::async, [&] { return start(0); });
    ranks[1] = start(1);
    ranks[0] = first.get();
  }
  ~Splits() override {
    for (const auto& rank : ranks)
      rank->shutdown();
  }

  c10::intrusive_ptr<WeftBackend> start(int rank) {
    auto options = c10::make_intrusive<WeftBackend::Options>(kPatience);
    options->group_name = "both";
    options->global_ranks_in_group = {4, 5};
    options->make_delegate = [](const DelegateSpec& spec) {
      spec.store->set("made", "once");
      return BackendPtr();
    };
    return c10::make_intrusive<WeftBackend>(under("both"), rank, 2, std::move(options));
  }
  StorePtr under(const std::string& name) const {
    return c10::make_intrusive<c10d::PrefixStore>(name, store);
  }
  // As torch's split_group() calls it: with the group's own options, changed.
  BackendPtr split(int rank, const StorePtr& own, const std::string& name,
                   milliseconds limit = kPatience) {
    auto& parent = *ranks.at(static_cast<std::size_t>(rank));
    const auto options = parent.getBackendOptions();
    options->group_name = name;
    options->timeout = limit;
    return parent.split(own, {0, 1}, options);
  }
  std::future<BackendPtr> splitting(int rank, const std::string& name) {
    return std::async(std::launch::async,
                      [this, rank, name] { return split(rank, under(name), name); });
  }
  // Rank 0 and rank 1, at once.
  std::array<BackendPtr, 2> splitBoth(const std::string& name) {
    auto first = splitting(0, name);
    auto second = splitting(1, name);
    return {first.get(), second.get()};
  }
  bool hasCome(int rank, const std::string& name) const {
    const auto meeting = c10::make_intrusive<c10d::PrefixStore>("weft/", under(name));
    return waitUntil([&] { return meeting->check({"epoch/" + std::to_string(rank)}); }, kPatience);
  }

  c10::intrusive_ptr<c10d::HashStore> store = c10::make_intrusive<c10d::HashStore>();
  std::array<c10::intrusive_ptr<WeftBackend>, 2> ranks;
};

void expectToMeet(const std::array<BackendPtr, 2>& made) {
  auto first = std::async(std::launch::async, [&] { made[0]->barrier({})->wait(); });
  made[1]->barrier({})->wait();
  first.get();
}

TEST_F(Splits, OneThatFailedIsTriedAgainThoughTheRanksHaveTriedDifferentlyOften) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      split(0, under("late"), "late", milliseconds(50));
      FAIL() << "rank 1 has not come";
    } catch (const c10::DistBackendError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  HasSubstr("process group 'late' of size 2 (ranks 4, 5 of the default process "
                            "group): Timed out waiting for rank 1"));
    }
  }
  expectToMeet(splitBoth("late"));
}

// Rank 0 makes one of them first, rank 1 the other.
TEST_F(Splits, TwoThreadsMakeGroupsOfDifferentNamesInDifferentOrders) {
  auto x0 = splitting(0, "x");
  auto y1 = splitting(1, "y");
  ASSERT_TRUE(hasCome(0, "x") && hasCome(1, "y"));
  auto y0 = splitting(0, "y");
  auto x1 = splitting(1, "x");
  expectToMeet({x0.get(), x1.get()});
  expectToMeet({y0.get(), y1.get()});
}

TEST_F(Splits, ASecondCallWithOneStoreGetsTheSameBackend) {
  const StorePtr own = under("devices");
  auto other = splitting(1, "devices");
  const BackendPtr cpu = split(0, own, "devices");
  EXPECT_EQ(split(0, own, "devices"), cpu);
  expectToMeet({cpu, other.get()});
}

TEST_F(Splits, GroupsOfTheSameRanksHaveDelegatesWithPartsOfTheStoreOfTheirOwn) {
  const auto first = splitBoth("same");
  const auto second = splitBoth("same");
  EXPECT_NE(first[0], second[0]);
  std::vector<at::Tensor> there{at::empty({4}, at::TensorOptions().device(c10::DeviceType::Meta))};
  const auto keys = store->getNumKeys();
  EXPECT_THROW(first[0]->allreduce(there, {}), c10::Error);
  EXPECT_THROW(second[0]->allreduce(there, {}), c10::Error);
  EXPECT_EQ(store->getNumKeys(), keys + 2);
}

TEST_F(Splits, AreForgottenOnceTheyAreGone) {
  std::array<BackendPtr, 2> children = splitBoth("first");
  const c10::weak_intrusive_ptr<c10d::Backend> first(children[0]);
  children = splitBoth("second");
  EXPECT_TRUE(first.expired());
  EXPECT_EQ(first.weak_use_count(), 2U);  // this one, and the parent's
  children = splitBoth("third");
  EXPECT_EQ(first.weak_use_count(), 1U);
}

// Another thread may hold any lock as the process forks.
TEST_F(Splits, TellAForkedChildOfTheirParentWhatTheyDo) {
  std::atomic<bool> over{false};
  std::thread asks([&] {
    while (!over.load()) {
      static_cast<void>(ranks[0]->activity());
      static_cast<void>(ranks[0]->waitingMessages());
    }
  });
  for (int attempt = 0; attempt < 100; ++attempt) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(5);
      const bool idle = ranks[0]->activity().running == nullptr;
      ::_exit(idle && ranks[0]->waitingMessages().empty() ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    if (status != 0) break;
  }
  over.store(true);
  asks.join();
}

TEST_F(Splits, ChangeNothingInTheirParentsOptions) {
  splitBoth("other");
  EXPECT_EQ(ranks[0]->getBackendOptions()->group_name, "both");
  EXPECT_EQ(ranks[0]->getBackendOptions()->timeout, kPatience);
  ranks[0]->setTimeout(seconds(7));
  EXPECT_EQ(ranks[0]->getBackendOptions()->timeout, seconds(7));
}

}  // namespace
}  // namespace weft::process_group
