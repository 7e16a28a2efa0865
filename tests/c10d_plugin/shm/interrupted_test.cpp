// Operations that are cut short: by a rank that stops for a while, by abort(), by a timeout. What
// reports success is right; and who is told of a failure uses the memory that the others may still
// read for something else at once.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <random>

#include "tests/c10d_plugin/shm/ranks.h"

#include "tests/support/waiting.h"

namespace weft::collectives::testing {
namespace {

constexpr std::size_t kParts = 6;  // divides by 2 and 3 ranks
constexpr std::size_t kBytes = kParts << 19;

// A rank's data: whole numbers that tell the rank and the operation.
class Data {
 public:
  Data(Collectives& group, bool shared, std::size_t bytes) : bytes_(bytes) {
    if (shared) shared_ = group.allocate(bytes);
    if (shared_.data == nullptr) plain_.resize(bytes);
  }
  Bytes bytes() { return {shared_.data != nullptr ? shared_.data : plain_.data(), bytes_}; }
  Bytes part(int rank, int ranks) {
    const std::size_t each = bytes_ / static_cast<std::size_t>(ranks);
    return bytes().subspan(each * static_cast<std::size_t>(rank), each);
  }
  std::vector<Bytes> parts(int ranks) {
    std::vector<Bytes> all;
    for (int rank = 0; rank < ranks; ++rank)
      all.push_back(part(rank, ranks));
    return all;
  }

 private:
  std::size_t bytes_;
  transport::OwnedBuffer shared_;
  std::vector<std::byte> plain_;
};

void fill(Bytes bytes, std::int32_t value) {
  auto* const data = reinterpret_cast<std::int32_t*>(bytes.data());
  std::fill(data, data + bytes.size() / sizeof(std::int32_t), value);
}

bool holds(ConstBytes bytes, std::int32_t value) {
  const auto* const data = reinterpret_cast<const std::int32_t*>(bytes.data());
  const auto* const end = data + bytes.size() / sizeof(std::int32_t);
  return std::all_of(data, end, [&](std::int32_t each) { return each == value; });
}

// Runs operations of all kinds until one fails. 1: one that succeeded had a wrong result.
class Runner {
 public:
  Runner(Collectives& group, bool shared, milliseconds limit, std::function<void()> running)
      : group_(group),
        running_(std::move(running)),
        ranks_(group.size()),
        limit_(limit),
        in_(group, shared, kBytes),
        out_(group, shared, kBytes) {}

  int untilOneFails() {
    auto end = Clock::time_point::max();
    Error error;
    do {
      if (number_ == kWarmUp) {
        running_();
        end = Clock::now() + seconds(5);  // an interruption may hit nothing
      }
      ++number_;
      fill(in_.bytes(), valueOf(group_.rank()));
      fill(out_.bytes(), -1);
      error = operation(number_ % 8);
      if (!error && !right_) return 1;
    } while (!error && Clock::now() < end);
    fill(in_.bytes(), -2);
    fill(out_.bytes(), -2);
    return 0;
  }

 private:
  std::int32_t valueOf(int rank) const { return 1000 * (rank + 1) + number_ % 1000; }
  std::int32_t sum() const {
    std::int32_t sum = 0;
    for (int rank = 0; rank < ranks_; ++rank)
      sum += valueOf(rank);
    return sum;
  }
  bool partsHoldTheirRank(bool wanted = true) {
    for (int rank = 0; rank < ranks_ && wanted; ++rank) {
      if (!holds(out_.part(rank, ranks_), valueOf(rank))) return false;
    }
    return true;
  }

  Error operation(int kind) {
    const int own = group_.rank();
    const int root = number_ / 8 % ranks_;
    const Call call{in(number_ <= kWarmUp ? seconds(20) : limit_),
                    static_cast<std::uint64_t>(number_), Element::kInt32, Reduction::kSum};
    const std::vector<Bytes> into = out_.parts(ranks_);
    const std::vector<Bytes> from = in_.parts(ranks_);
    const std::vector<ConstBytes> parts(from.begin(), from.end());
    const std::vector<Bytes> none;
    const std::vector<ConstBytes> nothing;
    Error error;
    right_ = true;
    switch (kind) {
      case 0:
      case 1:
        error = group_.allReduce(call, in_.bytes());
        right_ = holds(in_.bytes(), sum());
        break;
      case 2:
        error = group_.reduce(call, in_.bytes(), root);
        right_ = holds(in_.bytes(), own == root ? sum() : valueOf(own));
        break;
      case 3:
        error = group_.broadcast(call, in_.bytes(), root);
        right_ = holds(in_.bytes(), valueOf(root));
        break;
      case 4:
        error = group_.allGather(call, in_.part(0, ranks_), into);
        right_ = partsHoldTheirRank();
        break;
      case 5:
        error = group_.gather(call, in_.part(0, ranks_), own == root ? into : none, root);
        right_ = partsHoldTheirRank(own == root);
        break;
      case 6:
        error = group_.reduceScatter(call, parts, out_.part(0, ranks_));
        right_ = holds(out_.part(0, ranks_), sum());
        break;
      default:
        error = group_.allToAll(call, parts, into);
        right_ = partsHoldTheirRank();
    }
    return error;
  }

  static constexpr int kWarmUp = 8;  // they wait for processes that are just starting

  Collectives& group_;
  const std::function<void()> running_;
  const int ranks_;
  const milliseconds limit_;
  int number_ = 0;
  bool right_ = true;
  Data in_;
  Data out_;
};

enum class How { kStopped, kAborted, kTimedOut };

struct Case {
  How how;
  int ranks;
  bool shared;  // the data lie in the group's memory
};

class Interrupted : public ::testing::TestWithParam<Case> {};

int rankBody(Collectives& group, const Case& test, KeyValue& store, milliseconds when) {
  const bool interrupted = group.rank() == 1;
  std::thread breaker;
  const auto running = [&] {
    if (interrupted) static_cast<void>(store.set("running", "yes"));
    if (!interrupted || test.how != How::kAborted) return;
    breaker = std::thread([&] {
      takes(when);
      group.abort({ErrorCode::kShutdown, "enough"});
    });
  };
  const milliseconds limit = test.how == How::kTimedOut  ? milliseconds(5)
                             : test.how == How::kStopped ? milliseconds(50)
                                                         : milliseconds(20'000);
  const int wrong = Runner(group, test.shared, limit, running).untilOneFails();
  // On a busy machine the others may give up before this rank says so.
  if (interrupted) static_cast<void>(store.set("running", "yes"));
  if (breaker.joinable()) breaker.join();
  return wrong;
}

TEST_P(Interrupted, WhatSucceedsIsRight) {
  const Case& test = GetParam();
  const std::uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 5; ++round) {
    const milliseconds when(random() % 40);
    const TemporaryFolder folder;
    FolderStore store(folder.path());
    Children children;
    startRanks(children, folder, test.ranks, {},
               [&](Collectives& group) { return rankBody(group, test, store, when); });
    if (test.how == How::kStopped) {
      ASSERT_TRUE(store.get("running", in(seconds(60))).ok());
      takes(when);
      ::kill(children.pid(1), SIGSTOP);
      takes(milliseconds(120));
      ::kill(children.pid(1), SIGCONT);
    }
    for (int rank = 0; rank < test.ranks; ++rank) {
      EXPECT_EQ(children.wait(static_cast<std::size_t>(rank), seconds(60)), 0)
          << "a successful operation had a wrong result on rank " << rank << "; seed " << seed
          << ", round " << round;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    How, Interrupted,
    ::testing::Values(Case{How::kStopped, 2, true}, Case{How::kStopped, 3, true},
                      Case{How::kStopped, 3, false}, Case{How::kAborted, 2, true},
                      Case{How::kAborted, 3, true}, Case{How::kTimedOut, 3, true}));

}  // namespace
}  // namespace weft::collectives::testing
